"""Tools that the provider ran, as spans, in `agentobs show`, and on the pages of a session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentobs.recording.facts.interpreter import Interpreter
from agentobs.store.duckdb.ingest import ingest
from exporters import otlp
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import serving
from tests.exporters.collector import Collector, values
from tests.recording.test_provider_tools import MS, SEARCH, call, exchange, failed, found
from tests.store.recordings import a_home, end, record, session_id, start

TIMED = exchange(
    1,
    [call(1), found(1), call(2), failed(2, "web_search", "too_many_requests")],
    streamed=True,
    tools=[SEARCH],
)
UNTIMED = exchange(2, [call(3), found(3)], tools=[SEARCH])


@pytest.mark.parametrize("profile", ["both", "openinference"])
def test_a_tool_of_the_provider_is_a_span_within_its_request(profile: str) -> None:
    """It lasts from the call to its result; a call without a known time has no length and does not count as fast."""
    interpreter = Interpreter(b"key")
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint, profile=profile)
        for each in (start(1), TIMED, UNTIMED, end(1)):
            for written in interpreter.interpret(each).facts:
                backend(written)
        backend.close(20)
        assert backend.failed == 0
        spans, metrics = collector.spans(), collector.metrics()
    tools = sorted(
        (span for span in spans if span.attributes["agentobs.span"] == "tool"),
        key=lambda span: span.start,
    )
    requests = {
        span.span_id: span for span in spans if span.attributes["agentobs.span"] == "llm_request"
    }
    own_id = {"both": "gen_ai.tool.call.id", "openinference": "tool.id"}[profile]
    assert [
        (
            span.start - TIMED.started_ns,
            span.end - span.start,
            span.attributes[own_id],
            span.attributes["agentobs.tool.use"],
            span.attributes["agentobs.tool.is_timed"],
            span.attributes.get("error.type"),
        )
        for span in tools
    ] == [
        (2 * MS, 3 * MS, "srvtoolu_1", 1, True, None),
        (7 * MS, 3 * MS, "srvtoolu_2", 2, True, "too_many_requests"),
        (UNTIMED.started_ns + UNTIMED.ended_ns - TIMED.started_ns, 0, "srvtoolu_3", 1, False, None),
    ]
    for span in tools:
        request = requests[span.parent]
        assert request.start <= span.start <= span.end <= request.end
        assert span.attributes["agentobs.tool.runs_on"] == "provider"
        assert span.attributes["agentobs.tool.max_uses"] == 2
        if profile == "both":
            assert span.name == "execute_tool web_search"
            assert span.attributes["gen_ai.tool.type"] == "extension"
    points = metrics["gen_ai.execute_tool.duration"].histogram.data_points
    assert {
        (values(point.attributes).get("error.type"), point.count, round(point.sum, 6))
        for point in points
    } == {(None, 1, 0.003), ("too_many_requests", 1, 0.003)}


@pytest.mark.slow
def test_show_and_the_session_page_list_the_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The timeline has a line for each call with its duration, and the page has a step for each call."""
    home = a_home(tmp_path)
    record(home, [start(1), TIMED, UNTIMED, end(1)])
    ingest(home)
    lines = [
        " ".join(each.split()) for each in Shell(home.path, capsys)("show", "story").out.split("\n")
    ]
    assert [
        line.partition(" call ")[2]
        for line in lines
        if " call web_search" in line and "×" not in line
    ] == [
        "web_search - 3.0 ms executed -",
        "web_search - 3.0 ms failed too_many_requests",
        "web_search - - executed -",
    ]
    with serving(home) as client:
        steps = client.get(f"/sessions/{session_id(1)}?tab=steps").html.partition('id="steps"')[2]
    assert len(re.findall(r"<td[^>]*>\s*<[^>]*>web_search<|web_search", steps)) >= 3
    assert "failed too_many_requests" in steps

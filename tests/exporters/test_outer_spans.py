"""If an agent runs inside a span of the program, each interaction is a separate trace, in the store and in exports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.agent import tool
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.recording.journal.home import existing_home
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Recording
from agentobs.store.analysis.wall_time import Split, interaction_times
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.store import DuckStore
from exporters import otlp, perfetto
from tests.agent.provider import MODEL, Provider, call, streamed
from tests.exporters.collector import Collector
from tests.exporters.sample_agents import DONE, calls, play, recording
from tests.exporters.test_perfetto import Read
from tests.provider_script import call as called
from tests.provider_script import script
from tests.provider_script import streamed as answered
from tests.provider_script import text as text_block

HELPER = AgentDefinition("helper", "Helps.", model=MODEL)
KEPT: list[Any] = []

TOOLS: Any = [{"name": n, "input_schema": {"type": "object"}} for n in ("look", "write")]


@tool(read_only=True)
def query(where: str) -> str:
    """Open a span, and another span that never ends."""
    with agentobs.span("db.query"):
        KEPT.append(agentobs.open_span("forgotten"))
    return "nothing"


@dataclass(frozen=True)
class RecordedRun:
    """A recording as the store, a replay and the backends represent it."""

    collector: Collector
    drawn: Read
    spans: list[tuple[Any, ...]]
    """(name, span, trace, parent, link) of each span."""
    interactions: list[str]
    times: list[Split]
    recording: Recording


def record_run(tmp_path: Path, what: Callable[[], Any]) -> RecordedRun:
    home = tmp_path / "home"
    with Collector() as collector:
        sends, draws = (
            otlp.standard(collector.endpoint),
            perfetto.trace_file(tmp_path / "traces"),
        )
        with recording(home, sends, draws):
            what()
            assert agentobs.recording.session.flush()
            assert sends.flush(20)
    KEPT.clear()
    [path] = (tmp_path / "traces").iterdir()
    found = existing_home(home)
    with connect(found) as connection:
        columns = "name, span_id, trace_id, parent_span_id, linked_span_id"
        spans = connection.sql(f"SELECT {columns} FROM spans ORDER BY started_ns").fetchall()
        cursor = connection.sql("SELECT interaction_id FROM interactions ORDER BY started_ns")
        interactions = [row[0] for row in cursor.fetchall()]
        [[session_id]] = connection.sql("SELECT session_id FROM sessions").fetchall()
        segments = connection.sql("SELECT segment_id FROM segments").fetchall()
        times = interaction_times(DuckStore(connection, found), session_id)
    recorded = read_session(found, session_id, [row[0] for row in segments])
    return RecordedRun(collector, Read(path.read_bytes()), spans, interactions, times, recorded)


def runs(count: int) -> None:
    """Run the agent loop `count` times in one span; each run calls a tool and a sub-agent."""
    starts = sub_agents([HELPER], background=False)
    once = [
        calls(call("toolu_1", "query", where="box")),
        calls(call("toolu_2", starts.name, agent="helper", prompt="Go")),
        streamed(DONE),
        streamed(DONE),
    ]

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            with agentobs.span("app.request"):
                for _ in range(count):
                    await play(client, tools=(query, starts))

    with Provider(once * count) as provider, agentobs.session("around"):
        asyncio.run(main(provider))


@pytest.mark.parametrize("count", [1, 2])
def test_agent_runs_inside_a_span_of_the_program(tmp_path: Path, count: int) -> None:
    """Each run is a separate trace that is linked to the program's span; otherwise, the span changes nothing."""
    found = record_run(tmp_path, lambda: runs(count))
    # The store: separate traces, sub-agents within tool calls, and spans of a tool within its call.
    by_trace = {each: [row for row in found.spans if row[2] == each] for each in found.interactions}
    [outer] = [row for row in found.spans if row[0] == "app.request"]
    assert len(by_trace) == count
    for rows in by_trace.values():
        assert [row[3:] for row in rows if row[0] == "interaction"] == [(None, outer[1])]
        assert {"sub_agent", "tool", "execution", "llm_request", "db.query"} <= {r[0] for r in rows}
        assert all(row[3] in {each[1] for each in rows} for row in rows if row[0] != "interaction")
    # A replay compares the results of interactions.
    assert found.recording.interaction_results == {"main": ["success"] * count}
    # The wall time is computed from spans; a span inside a tool counts as tool time.
    assert [each.timing_source for each in found.times] == ["spans"] * count
    for each in found.times:
        assert each.model_ns > 0
        assert {piece.part for piece in each.path if piece.name == "db.query"} == {"tool"}
        assert "forgotten" not in {piece.name for piece in each.path}
    # The exported spans and metrics.
    sent = found.collector.spans()
    roots = [span for span in sent if span.name == "invoke_agent main"]
    assert {span.trace_id for span in roots} == set(found.interactions)
    assert [span.links for span in roots] == [[(outer[2], outer[1])]] * count
    assert {span.attributes["agentobs.interaction.id"] for span in roots} == set(by_trace)
    assert all(span.attributes["agentobs.interaction.result"] == "success" for span in roots)
    [request] = [span for span in sent if span.name == "app.request"]
    assert "agentobs.interaction.id" not in request.attributes
    [measured] = found.collector.metrics()["gen_ai.invoke_agent.duration"].histogram.data_points
    assert measured.count == count
    # The Perfetto trace: interactions are inside the span.
    drawn = [each for each in found.drawn.slices if each["name"] == "invoke_agent main"]
    assert [each["in"] for each in drawn] == ["app.request"] * count
    assert {each["track"] for each in drawn} == {"main"}


def foreign(count: int) -> None:
    """Send `count` prompts with another client than our agent loop, in one span."""
    answers = [
        answer
        for each in range(count)
        for answer in (
            answered(called(each + 1, "look", where="box"), number=2 * each + 1),
            answered(text_block("ok"), number=2 * each + 2),
        )
    ]
    with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.url))
        messages: list[Any] = []
        with agentobs.session("foreign"), agentobs.span("app.request"):
            for each in range(count):
                messages.append({"role": "user", "content": f"Hello {each}"})
                for _ in range(2):
                    ask: dict[str, Any] = {
                        "model": "claude-sonnet-5",
                        "max_tokens": 64,
                        "tools": TOOLS,
                    }
                    with client.messages.stream(**ask, messages=messages) as stream:
                        answer: Any = stream.get_final_message()
                    messages.append({"role": "assistant", "content": answer.content})
                    if answer.content[0].type == "tool_use":
                        result = {"type": "tool_result", "tool_use_id": answer.content[0].id}
                        messages.append({"role": "user", "content": [{**result, "content": "no"}]})


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_interactions_of_another_client_inside_a_span_of_the_program(
    tmp_path: Path, count: int
) -> None:
    """Calls are children of the program's span and name their interaction, which is a separate trace with a link."""
    found = record_run(tmp_path, lambda: foreign(count))
    [outer] = [row for row in found.spans if row[0] == "app.request"]
    assert len(found.interactions) == count
    assert [row[2:4] for row in found.spans if row[0] == "llm_request"] == [
        (outer[2], outer[1])
    ] * (2 * count)
    assert [each.timing_source for each in found.times] == ["wire"] * count
    assert all(each.model_ns > 0 and each.tool_ns > 0 for each in found.times)
    sent = found.collector.spans()
    roots = [span for span in sent if span.name == "invoke_agent"]
    assert [span.trace_id for span in roots] == found.interactions
    assert [span.links for span in roots] == [[(outer[2], outer[1])]] * count
    inside = [span for span in sent if span.name in ("chat claude-sonnet-5", "execute_tool look")]
    assert {(span.trace_id, span.parent) for span in inside} == {(outer[2], outer[1])}
    named = [span.attributes["agentobs.interaction.id"] for span in inside]
    assert {each: named.count(each) for each in named} == dict.fromkeys(found.interactions, 3)
    [measured] = found.collector.metrics()["gen_ai.invoke_agent.duration"].histogram.data_points
    assert measured.count == count

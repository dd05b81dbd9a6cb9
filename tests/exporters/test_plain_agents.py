"""The telemetry of agents that only use the SDK: no loop of agentobs, no `record_tool`, no spans of the agent."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic import Anthropic
from click.testing import CliRunner

import agentobs
from agentobs.cli import cli
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.recording.session import flush
from agentobs.records.backend import ExchangeContent
from agentobs.store.duckdb.connection import connect
from exporters import otlp
from exporters.conventions.openinference_content import attributes_of_request
from tests.agent.provider import Provider, cut_after, streamed, text
from tests.exporters.collector import Collector, Response, Span
from tests.exporters.sample_agents import play, recording
from tests.exporters.test_backfill import send, spans
from tests.openinference.conversations import CONVERSATIONS, MODEL
from tests.openinference.replies import REPLIES, THINKING, answer
from tests.replay.test_base_urls import through_bedrock, through_gateway, through_vertex

pytestmark = pytest.mark.xdist_group("plain_agents")
PROFILES = ("both", "openinference")
ATTEMPT = "agentobs.llm_request.attempt"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """All conversations, each in a session that opted in, with the spans of each profile and the home."""
    home = tmp_path_factory.mktemp("plain") / "home"
    with Collector() as both, Collector() as openinference:
        backends = [
            otlp.standard(each.endpoint, profile=name)
            for each, name in ((both, "both"), (openinference, "openinference"))
        ]
        with recording(home, *backends):
            for name, converse in CONVERSATIONS.items():
                with Provider(REPLIES[name]) as provider, agentobs.session(name, content="export"):
                    converse(client(provider))
            assert flush()
            assert all(backend.flush(20) and backend.failed == 0 for backend in backends)
        with connect(existing_home(home)) as connection:
            ids = dict(connection.sql("SELECT name, session_id FROM sessions").fetchall())
        yield SimpleNamespace(home=home, both=both, openinference=openinference, ids=ids)


def client(provider: Provider) -> Anthropic:
    return agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))


def of_session(recorded: Any, profile: str, name: str) -> list[Span]:
    """Return the spans of a session in their order."""
    found = [
        span
        for span in getattr(recorded, profile).spans()
        if recorded.ids[name]
        in (span.attributes["session.id"], span.attributes.get("agentobs.session.id"))
    ]
    return sorted(found, key=lambda span: (span.start, span.parent))


def kind(span: Span) -> str:
    return str(span.attributes["agentobs.span"])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_retried_request_is_one_span_with_all_its_attempts(
    recorded: SimpleNamespace, profile: str
) -> None:
    """The span has the totals; each attempt is a child without tokens and cost, so that sums count nothing twice."""
    found = of_session(recorded, profile, "retry")
    [request] = [span for span in found if kind(span) == "llm_request"]
    attempts = [span for span in found if span.name == ATTEMPT]
    tokens = {"both": "gen_ai.usage.input_tokens", "openinference": "llm.token_count.prompt"}
    assert [s for s in found if tokens[profile] in s.attributes] == [request]
    assert [s for s in found if "agentobs.cost.usd" in s.attributes] == [request]
    assert request.attributes[tokens[profile]] == 11
    assert request.attributes["agentobs.attempts"] == 2
    assert request.status == 1
    assert [
        (
            each.attributes["agentobs.attempt.number"],
            each.attributes["http.response.status_code"],
            each.attributes.get("error.type"),
            each.status,
            each.proto.status.message,
            each.parent,
            each.proto.kind,
        )
        for each in attempts
    ] == [
        (1, 529, "overloaded_error", 2, "overloaded_error", request.span_id, 3),
        (2, 200, None, 1, "", request.span_id, 3),
    ]
    assert request.start == attempts[0].start
    assert request.end == attempts[1].end
    [wait] = [span for span in found if kind(span) == "retry_wait"]
    assert (wait.start, wait.end) == (attempts[0].end, attempts[1].start)
    names = {name for each in (*attempts, wait) for name in each.attributes}
    assert not [n for n in names if n.startswith(("gen_ai.usage", "llm.", "agentobs.cost"))]


@pytest.mark.slow
def test_broken_attempts_count_in_the_totals(tmp_path: Path) -> None:
    """If a response breaks and is retried, the span has the tokens and the cost of both attempts, as in the store."""

    async def main(provider: Provider) -> None:
        async with provider.client() as asynchronous:
            await play(asynchronous, model=MODEL)

    with Collector() as collector:
        backend = otlp.standard(collector.endpoint, profile="openinference")
        with recording(tmp_path / "home", backend):
            replies = [cut_after(THINKING, 5), streamed(THINKING)]
            with Provider(replies) as provider, agentobs.session("retried"):
                asyncio.run(main(provider))
            assert flush()
            assert backend.flush(20)
    [request] = [span for span in collector.spans() if kind(span) == "llm_request"]
    assert request.attributes["agentobs.attempts"] == 2
    with connect(existing_home(tmp_path / "home")) as connection:
        sql = "SELECT count(*)::INT, sum(output_tokens)::INT FROM usage"
        [(rows, output)] = connection.sql(sql).fetchall()
        [(usd,)] = connection.sql("SELECT sum(cost_usd)::DOUBLE FROM costs").fetchall()
    assert rows == 2
    assert request.attributes["llm.token_count.completion"] == output
    assert request.attributes["llm.cost.total"] == pytest.approx(usd)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_live_and_delayed_export_are_equal(recorded: SimpleNamespace, profile: str) -> None:
    """A delayed export has the same spans, with the same content read from the recording."""
    with Collector() as collector:
        report = send(existing_home(recorded.home), collector, profile, signals=("traces",))
        assert report.is_complete
        assert report.without_content == 0
    assert spans(collector) == spans(getattr(recorded, profile))


def test_tool_spans_have_the_input_and_the_output_of_the_call(recorded: SimpleNamespace) -> None:
    """The input is that of the response, and the output is that of the next request, even if the tool failed."""
    found = [s for s in of_session(recorded, "openinference", "call_tools") if kind(s) == "tool"]
    assert [
        (
            tool.name,
            tool.attributes["tool.id"],
            tool.attributes["input.value"],
            tool.attributes["output.value"],
            tool.status,
            tool.proto.status.message,
        )
        for tool in found
    ] == [
        (
            "weather",
            "toolu_1",
            '{"city": "Rome"}',
            '[{"type": "text", "text": "{\\"sky\\": \\"clear\\"}"}]',
            1,
            "",
        ),
        ("weather", "toolu_2", '{"city": "Atlantis"}', "there is no such city", 2, "semantic"),
    ]
    found = [s for s in of_session(recorded, "both", "call_tools") if kind(s) == "tool"]
    assert [
        (t.attributes["gen_ai.tool.call.arguments"], t.attributes["gen_ai.tool.call.result"])
        for t in found
    ] == [
        ('{"city": "Rome"}', '[{"type": "text", "text": "{\\"sky\\": \\"clear\\"}"}]'),
        ('{"city": "Atlantis"}', '"there is no such city"'),
    ]


def test_agent_spans_have_the_prompt_and_the_final_response(recorded: SimpleNamespace) -> None:
    """The span of an interaction has the prompt as its input and the last response as its output."""
    [agent] = [
        s for s in of_session(recorded, "openinference", "call_tools") if kind(s) == "interaction"
    ]
    names = ("input.value", "input.mime_type", "output.value", "output.mime_type")
    assert [agent.attributes[name] for name in names] == [
        "What is the weather in Rome?",
        "text/plain",
        "Sunny.",
        "text/plain",
    ]
    [agent] = [s for s in of_session(recorded, "both", "call_tools") if kind(s) == "interaction"]
    [prompt] = json.loads(agent.attributes["gen_ai.input.messages"])
    assert prompt["parts"] == [{"type": "text", "content": "What is the weather in Rome?"}]
    [final] = json.loads(agent.attributes["gen_ai.output.messages"])
    assert final["parts"] == [{"type": "text", "content": "Sunny."}]


def test_sessions_that_did_not_opt_in_export_no_content(tmp_path: Path) -> None:
    """Without the opt-in, no span has an input or an output. Parameters are facts, so they are exported."""
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint, profile="openinference")
        with recording(tmp_path / "home", backend):
            with Provider(REPLIES["call_tools"]) as provider, agentobs.session("closed"):
                CONVERSATIONS["call_tools"](client(provider))
            with Provider(REPLIES["ask"]) as provider, agentobs.session("closed"):
                CONVERSATIONS["ask"](client(provider))
            assert flush()
            assert backend.flush(20)
    names = {name for span in collector.spans() for name in span.attributes}
    assert not [n for n in names if n.startswith(("input.", "output.")) or "messages" in n]
    for word in (b"Rome", b"Atlantis", b"Hello", b"STOP", b"user-1", b"brief"):
        assert word not in collector.bytes
    parameters = [
        json.loads(span.attributes["llm.invocation_parameters"])
        for span in collector.spans()
        if kind(span) == "llm_request"
    ]
    assert parameters == [
        {"max_tokens": 64, "tool_choice": {"type": "any", "disable_parallel_tool_use": False}},
        {"max_tokens": 64, "stream": True},
        {"max_tokens": 64, "temperature": 0.5},
    ]


def test_parameters_have_the_names_of_the_conventions(recorded: SimpleNamespace) -> None:
    """With the GenAI names, parameters without a name in the conventions are `agentobs.request.*`."""
    chats = {
        name: next(s for s in of_session(recorded, "both", name) if kind(s) == "llm_request")
        for name in ("ask", "stream", "call_tools")
    }
    found = {
        (name, key.removeprefix("gen_ai.")): value
        for name, chat in chats.items()
        for key, value in chat.attributes.items()
        if key.startswith(("gen_ai.request.", "agentobs.request.")) and not key.endswith("model")
    }
    assert found == {
        ("ask", "request.max_tokens"): 64,
        ("ask", "request.temperature"): 0.5,
        ("ask", "request.stream"): False,
        ("stream", "request.max_tokens"): 2048,
        ("stream", "agentobs.request.thinking.type"): "enabled",
        ("stream", "agentobs.request.thinking.budget_tokens"): 1024,
        ("stream", "request.stream"): True,
        ("call_tools", "request.max_tokens"): 64,
        ("call_tools", "agentobs.request.tool_choice.type"): "any",
        ("call_tools", "agentobs.request.tool_choice.disable_parallel_tool_use"): False,
        ("call_tools", "request.stream"): False,
    }
    with connect(existing_home(recorded.home)) as connection:
        sql = (
            "SELECT parameters['thinking.budget_tokens']::INT FROM attempts "
            "WHERE parameters['thinking.type'] = 'enabled'"
        )
        assert connection.sql(sql).fetchall() == [(1024,), (1024,)]


def test_tool_results_are_messages_of_the_role_tool(recorded: SimpleNamespace) -> None:
    """Each result is a message of the role `tool` with the ID of its call; the rest of the message follows."""
    roles = ["user", "assistant", "tool", "tool", "user"]
    last = [
        s for s in of_session(recorded, "openinference", "call_tools") if kind(s) == "llm_request"
    ][-1]
    at = "llm.input_messages.{}.message.{}"
    assert [last.attributes[at.format(number, "role")] for number in range(5)] == roles
    assert [last.attributes[at.format(n, "tool_call_id")] for n in (2, 3)] == ["toolu_1", "toolu_2"]
    assert last.attributes[at.format(3, "content")] == "there is no such city"
    assert last.attributes[at.format(4, "contents.0.message_content.text")] == "Answer in one word."
    last = [s for s in of_session(recorded, "both", "call_tools") if kind(s) == "llm_request"][-1]
    messages = json.loads(last.attributes["gen_ai.input.messages"])
    assert [each["role"] for each in messages] == roles
    assert [part["id"] for each in messages[2:4] for part in each["parts"]] == [
        "toolu_1",
        "toolu_2",
    ]


def test_a_long_conversation_fits_into_a_span() -> None:
    """The system prompt and the latest messages are kept, removed messages are counted, and the span stays small."""
    conversation = [
        {"role": role, "content": f"{number} {'x' * 10_000}"}
        for number in range(100)
        for role in ("user", "assistant")
    ]
    tools = [{"name": f"tool_{n}", "input_schema": {"about": "y" * 5_000}} for n in range(50)]
    question = {"system": "You are brief.", "messages": conversation, "tools": tools}
    blocks = [text("z" * 10_000) for _ in range(20)]
    content = ExchangeContent(json.dumps(question).encode(), json.dumps(answer(*blocks)).encode())
    found = attributes_of_request(content)
    assert sum(len(name) + len(str(value)) for name, value in found.items()) < 400_000
    assert found["agentobs.content.cut_characters"]
    assert found["agentobs.content.cut_messages"] == 200 - 1
    assert found["llm.input_messages.0.message.content"] == "You are brief."
    question |= {"tools": [], "messages": conversation[:-40]}
    content = ExchangeContent(json.dumps(question).encode(), json.dumps(answer()).encode())
    found = attributes_of_request(content)
    last = max(int(name.split(".")[2]) for name in found if name.startswith("llm.input"))
    assert last == 13
    assert str(found["llm.input_messages.13.message.content"]).startswith("79 ")
    # `input.value` has the six latest messages.
    assert found["agentobs.content.cut_messages"] == 160 - 6


@pytest.mark.parametrize("profile", PROFILES)
def test_spans_have_a_status(recorded: SimpleNamespace, profile: str) -> None:
    """Success is OK. A failure is ERROR with its class, and a failed call has an event with the error message."""
    by_status = Counter(
        (kind(s), s.status, s.proto.status.message)
        for name in ("call_tools", "fail")
        for s in of_session(recorded, profile, name)
    )
    assert by_status == {
        ("interaction", 1, ""): 1,
        ("llm_request", 1, ""): 2,
        ("tool", 1, ""): 1,
        ("tool", 2, "semantic"): 1,
        ("interaction", 2, "interrupted"): 1,
        ("llm_request", 2, "invalid_request_error"): 1,
        ("llm_request", 2, "permission_error"): 1,
    }
    events = [
        (each.name, {a.key: a.value.string_value for a in each.attributes})
        for s in of_session(recorded, profile, "fail")
        for each in s.proto.events
    ]
    assert events == [
        (
            "exception",
            {"exception.type": "invalid_request_error", "exception.message": "it is no good"},
        ),
        (
            "exception",
            {"exception.type": "permission_error", "exception.message": "it is not allowed"},
        ),
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_interaction_is_one_trace(recorded: SimpleNamespace, profile: str) -> None:
    """Each interaction has its own trace with one root, and all its spans are below this root."""
    names = [name for name in CONVERSATIONS if name != "count"]  # which belongs to no interaction
    found = [span for name in names for span in of_session(recorded, profile, name)]
    roots = [span for span in found if not span.parent]
    assert {kind(span) for span in roots} == {"interaction"}
    assert len({span.trace_id for span in found}) == len(roots)
    with connect(existing_home(recorded.home)) as connection:
        sql = "SELECT interaction_id FROM interaction_starts"
        assert {r.trace_id for r in roots} == {i for (i,) in connection.sql(sql).fetchall()}
    ids = {(span.trace_id, span.span_id) for span in found}
    assert all((span.trace_id, span.parent) in ids for span in found if span.parent)


def test_a_backend_sends_only_the_chosen_signals(tmp_path: Path) -> None:
    """With `signals=("traces",)`, a collector that rejects logs and metrics gets all spans and nothing else."""
    with Collector(
        respond=lambda signal, n: None if signal == "traces" else Response(404)
    ) as collector:
        backend = otlp.standard(collector.endpoint, signals=("traces",))
        with recording(tmp_path / "home", backend):
            with Provider(REPLIES["ask"]) as provider, agentobs.session("one"):
                CONVERSATIONS["ask"](client(provider))
            assert flush()
            assert backend.flush(20)
        assert backend.statistics().dropped == {}
        assert {each.signal for each in collector.received} == {"traces"}
        assert len(collector.spans()) == 2
        for signals in ((), "traces", ("spans",)):
            with pytest.raises(UsageError, match="signals"):
                otlp.standard(collector.endpoint, signals=signals)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_command_sends_only_the_chosen_signals(recorded: SimpleNamespace) -> None:
    """`--signal traces` succeeds with such a collector; without it, the command names the option."""
    with Collector(
        respond=lambda signal, n: None if signal == "traces" else Response(404)
    ) as collector:
        arguments = [
            "--home",
            str(recorded.home),
            "export",
            "otlp",
            "--endpoint",
            collector.endpoint,
        ]
        ran = CliRunner().invoke(cli, [*arguments, "--as", "one", "--signal", "traces"])
        assert (ran.exit_code, {each.signal for each in collector.received}) == (0, {"traces"})
        ran = CliRunner().invoke(cli, [*arguments, "--as", "two"])
        assert ran.exit_code == 1
        assert "if the collector accepts only traces, pass --signal traces" in ran.output


@pytest.mark.parametrize(
    ("client_for", "expected"),
    [
        (through_gateway, {"both": "anthropic", "openinference": "anthropic"}),
        (through_bedrock, {"both": "aws.bedrock", "openinference": "aws"}),
        (through_vertex, {"both": "gcp.vertex_ai", "openinference": "google"}),
    ],
)
def test_spans_name_the_platform_that_provides_the_model(
    tmp_path: Path, client_for: Any, expected: dict[str, str]
) -> None:
    """The provider of a model on Bedrock or Vertex has the name that the convention defines for the platform."""
    with Collector() as both, Collector() as openinference:
        collectors = {"both": both, "openinference": openinference}
        backends = [otlp.standard(c.endpoint, profile=name) for name, c in collectors.items()]
        with recording(tmp_path / "home", *backends):
            with Provider(REPLIES["cache"]) as provider, agentobs.session("one"):
                CONVERSATIONS["cache"](agentobs.record(client_for(provider.base_url)))
            assert flush()
            assert all(backend.flush(20) for backend in backends)
    names = {"both": "gen_ai.provider.name", "openinference": "llm.provider"}
    found = {
        (profile, span.attributes[names[profile]])
        for profile, collector in collectors.items()
        for span in collector.spans()
        if kind(span) == "llm_request"
    }
    assert found == set(expected.items())

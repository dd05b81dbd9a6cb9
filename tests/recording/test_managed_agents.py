"""Agents that the provider runs: their events become turns, tool calls, usage and money, each event once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types.beta import sessions as types
from pydantic import TypeAdapter

import agentobs
from agentobs.recording.journal.home import existing_home
from agentobs.recording.session import flush
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.records.facts import Attempt, UsageRow
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from exporters import otlp
from replay import Replayer
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import serving
from tests.exporters.collector import Collector
from tests.exporters.sample_agents import recording
from tests.marks import mark_all_but_first
from tests.replay.agents import frozen, last_session
from tests.replay.raw_provider import JSON, SSE, Play, play_chunks, raw_provider
from tests.replay.wire_recordings import NOWHERE
from tests.store.recordings import a_home, end, record, session_id, start

SESSION = "sesn_011CZkZaBF1tNoB5wlCeusgy"
THREAD = "sthr_011CZkZaBF1tNoB5wlCeusgz"
DAY = "2026-11-20T10:00:"
ADAPTER: TypeAdapter[Any] = TypeAdapter(types.BetaManagedAgentsStreamSessionEvents)
MODEL = "claude-opus-4-8"
RESOURCE = {"id": SESSION, "type": "session", "agent": {"type": "agent", "model": {"id": MODEL}}}


def event(number: int, kind: str, second: float | None, **more: Any) -> dict[str, Any]:
    """Return an event, checked by the SDK's types."""
    value = {"id": f"sevt_{number:04}", "type": kind, **more}
    if second is not None:
        value["processed_at"] = f"{DAY}{second:09.6f}Z"
    ADAPTER.validate_python(value)
    return value


def usage(tokens: int) -> dict[str, int]:
    return {
        "input_tokens": tokens,
        "output_tokens": tokens + 1,
        "cache_read_input_tokens": tokens + 2,
        "cache_creation_input_tokens": tokens + 3,
    }


def request(number: int, second: float, tokens: int, **more: Any) -> list[dict[str, Any]]:
    """Return the start and the end of a request to the model, 2 s later."""
    return [
        event(number, "span.model_request_start", second),
        event(
            number + 1,
            "span.model_request_end",
            second + 2,
            model_request_start_id=f"sevt_{number:04}",
            model_usage=usage(tokens),
            **more,
        ),
    ]


PROMPT = event(1, "user.message", None, content=[{"type": "text", "text": "My private prompt"}])
FIRST = request(10, 1, 100)
CALLS = [
    event(20, "agent.tool_use", 3.1, name="bash", input={"command": "ls"}),
    event(21, "agent.mcp_tool_use", 3.2, name="read_page", mcp_server_name="wiki", input={}),
    event(22, "agent.custom_tool_use", 3.3, name="refund", input={"order": 7}),
    event(23, "agent.tool_result", 4.1, tool_use_id="sevt_0020", content=[]),
    event(
        24,
        "agent.mcp_tool_result",
        4.2,
        mcp_tool_use_id="sevt_0021",
        is_error=True,
        content=[{"type": "text", "text": "private"}],
    ),
]
WAITING = event(
    25,
    "session.status_idle",
    4.3,
    stop_reason={"type": "requires_action", "event_ids": ["sevt_0022"]},
)
ANSWER = event(
    26,
    "user.custom_tool_result",
    5,
    custom_tool_use_id="sevt_0022",
    content=[{"type": "text", "text": "done"}],
)
SECOND = request(30, 6, 200)
DONE = event(40, "session.status_idle", 9, stop_reason={"type": "end_turn"})
SNAPSHOT = event(
    41,
    "session.usage",
    9.5,
    usage={
        "input_tokens": 300,
        "output_tokens": 302,
        "active_seconds": 7.5,
        "list_cost": {"amount": "12", "currency": "USD"},
        "server_tool_use": {"web_search_requests": 3},
    },
)
ALL = [PROMPT, *FIRST, *CALLS, WAITING, ANSWER, *SECOND, DONE, SNAPSHOT]


def streamed(events: Iterable[dict[str, Any]]) -> list[bytes]:
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def exchange(
    number: int,
    path: str,
    body: bytes | Sequence[bytes],
    *,
    method: str = "GET",
    ending: Any = "complete",
    session: int = 1,
) -> ModelExchange:
    """Return an exchange; a list of parts is a stream."""
    is_stream = not isinstance(body, bytes)
    parts = [body] if isinstance(body, bytes) else body
    kind = "text/event-stream" if is_stream else "application/json"
    return ModelExchange(
        place=Place(session_id(session)),
        attempt_id=f"{session:016x}{number:016x}",
        started_ns=1_795_000_000_000_000_000 + number * 10**9,
        headers_ns=1,
        ended_ns=10**6,
        question=Question(method, path, {"anthropic-version": "2023-06-01"}, b""),
        answer=Answer(
            200,
            {"content-type": kind},
            tuple(Chunk(p, at) for at, p in enumerate(parts, 1)),
            ending,
        ),
    )


def stream(number: int, events: Iterable[dict[str, Any]], **more: Any) -> ModelExchange:
    return exchange(
        number, f"/v1/sessions/{SESSION}/events/stream?beta=true", streamed(events), **more
    )


def listed(number: int, events: Sequence[dict[str, Any]], **more: Any) -> ModelExchange:
    body = json.dumps({"data": list(events), "next_page": None}).encode()
    return exchange(number, f"/v1/sessions/{SESSION}/events?beta=true", body, **more)


def resource(number: int = 1, session: int = 1) -> ModelExchange:
    body = json.dumps(RESOURCE).encode()
    return exchange(number, "/v1/sessions?beta=true", body, method="POST", session=session)


@contextmanager
def stored(tmp_path: Path, *sessions: Sequence[ModelExchange]) -> Iterator[Any]:
    """Record sessions, each with these exchanges, and open the store."""
    home = a_home(tmp_path)
    for number, exchanges in enumerate(sessions, 1):
        record(home, [start(number), *exchanges, end(number, at=1_800_000_000_000_000_000)])
    with connect(home) as database:
        yield database


TURNS = """
    SELECT turn, turns.model, started_at::VARCHAR, duration_ns // 1000000000, input_tokens, output_tokens,
        cache_read_tokens, cache_write_tokens, cost_status
    FROM turns JOIN audited_costs USING (session_id, attempt_id) ORDER BY turn
"""
EXPECTED_TURNS = [
    (1, MODEL, "2026-11-20 10:00:01", 2, 100, 101, 102, 103, "lower_bound"),
    (2, MODEL, "2026-11-20 10:00:06", 2, 200, 201, 202, 203, "lower_bound"),
]

WAYS: dict[str, list[ModelExchange]] = {
    "one stream": [resource(), stream(2, ALL)],
    "a list": [resource(), listed(2, ALL)],
    "a list in reverse order": [resource(), listed(2, ALL[::-1])],
    "a stream, then a list": [resource(), stream(2, ALL), listed(3, ALL)],
    "two streams at once": [resource(), stream(2, ALL), stream(3, ALL)],
    "a stream that broke, another, and a list": [
        resource(),
        stream(2, ALL[:2], ending="cut"),
        stream(3, ALL[5:9], ending="cancelled"),
        listed(4, ALL),
    ],
    "only the last request, then a list": [resource(), stream(2, ALL[-4:]), listed(3, ALL)],
}


@pytest.mark.parametrize("way", mark_all_but_first(WAYS, pytest.mark.slow))
def test_each_event_counts_once(tmp_path: Path, way: str) -> None:
    """Turns, calls, usage and interactions are the same, however often and in whatever order the events are seen."""
    with stored(tmp_path, WAYS[way]) as database:
        rows = database.execute(TURNS).fetchall()
        if way.startswith(
            "only the last"
        ):  # the order of discovery determines the numbers of turns
            assert sorted(row[1:] for row in rows) == [row[1:] for row in EXPECTED_TURNS]
        else:
            assert rows == EXPECTED_TURNS
        assert database.execute(
            "SELECT count(*), count(DISTINCT attempt_id) FROM usage"
        ).fetchall() == [(2, 2)]
        assert database.execute(
            "SELECT count(*) FROM events WHERE kind = 'managed_agent'"
        ).fetchall() == [(len(ALL),)]
        ended = database.execute("SELECT result, is_error FROM interactions").fetchall()
        assert ended == [("success", False)] or way.startswith("only the last")
        calls = database.execute(
            """
            SELECT name LIKE 'digest:%', server LIKE 'digest:%', runs_on, outcome, source, is_error,
                duration_ns // 1000000, (result_ns - requested_ns) // 1000000
            FROM tool_calls ORDER BY requested_ns
            """
        ).fetchall()
        assert calls == [
            (False, None, "provider", "executed", "response", False, 1000, 1000),
            (True, True, "provider", "failed", "response", True, 1000, 1000),
            (True, None, "client", "executed", "wire", False, None, 1700),
        ]


def test_a_later_session_does_not_count_the_events_again(tmp_path: Path) -> None:
    """If another program lists the events later, the money is not counted twice, and the page states this."""
    first = [resource(), stream(2, ALL)]
    second = [resource(1, session=2), listed(2, ALL, session=2)]
    with stored(tmp_path, first, second) as database:
        [(cost,)] = database.execute("SELECT count(*) FROM costs").fetchall()
        assert cost == 2
        states = database.execute("SELECT cost_status FROM managed_sessions ORDER BY session_id")
        assert states.fetchall() == [("lower_bound",), ("counted elsewhere",)]


def test_a_snapshot_of_the_provider_is_shown_with_the_counted_tokens(tmp_path: Path) -> None:
    """The sums of the session that the provider reports are not added to the usage."""
    with stored(tmp_path, [resource(), stream(2, ALL)]) as database:
        rows = database.execute(
            """
            SELECT managed_session_id, events, requests, input_tokens, output_tokens, cost_usd > 0, cost_status,
                reported_output_tokens, active_seconds, list_cost_usd
            FROM managed_sessions
            """
        ).fetchall()
    assert rows == [
        (SESSION, len(ALL), 2, 300, 302, True, "lower_bound", 302, 7.5, Decimal("0.12"))
    ]


def test_usage_that_was_not_seen_is_not_counted(tmp_path: Path) -> None:
    """A prompt without any event of its requests, and a request without its end, never cost an exact amount."""
    sent = json.dumps({"data": [PROMPT]}).encode()
    path = f"/v1/sessions/{SESSION}/events?beta=true"
    only_sent = [resource(), exchange(2, path, sent, method="POST")]
    without_end = [resource(1, session=2), stream(2, [PROMPT, FIRST[0]], session=2)]
    with stored(tmp_path, only_sent, without_end) as database:
        states = database.execute(
            "SELECT cost_usd, cost_status, requests FROM managed_sessions ORDER BY session_id"
        ).fetchall()
        assert states == [(None, "not counted", 0), (None, "not counted", 1)]
        notes = database.execute("SELECT note, certainty FROM usage").fetchall()
        assert notes == [("usage:unreported", "lower_bound")] * 2
        totals = database.execute("SELECT DISTINCT cost_status FROM cost_by_session").fetchall()
        assert totals == [("lower_bound",)]
        ended = database.execute("SELECT outcome FROM attempts WHERE origin = 'managed'").fetchall()
        assert ended == [("cut",)]
        assert database.execute("SELECT DISTINCT result FROM interactions").fetchall() == [
            ("interrupted",)
        ]


def test_an_unknown_model_has_no_price(tmp_path: Path) -> None:
    """If the session's own description was not seen, its model is unknown, and the cost is NULL."""
    with stored(tmp_path, [stream(2, ALL)]) as database:
        rows = database.execute(
            "SELECT DISTINCT model, cost_usd, cost_status FROM costs"
        ).fetchall()
        assert rows == [("unknown", None, "unknown_model")]


def test_failed_requests_and_ends_of_the_session(tmp_path: Path) -> None:
    """A failed request has the type of the error before it; a session that terminates after an error has failed."""
    error = {
        "type": "model_overloaded_error",
        "message": "private",
        "retry_status": {"type": "terminal"},
    }
    events = [
        PROMPT,
        event(10, "span.model_request_start", 1),
        event(11, "session.error", 2, error=error),
        event(
            12,
            "span.model_request_end",
            3,
            model_request_start_id="sevt_0010",
            model_usage=usage(0),
            is_error=True,
        ),
        event(13, "session.status_terminated", 4),
    ]
    with stored(tmp_path, [resource(), stream(2, events)]) as database:
        attempts = database.execute(
            "SELECT outcome, error_type, makes_turns FROM attempts WHERE origin = 'managed'"
        ).fetchall()
        assert attempts == [("stream_error", "model_overloaded_error", True)]
        ended = database.execute("SELECT result, is_error FROM interactions").fetchall()
        assert ended == [("terminated", True)]
        labels = database.execute(
            "SELECT labels['managed_word'], labels['managed_retry_status'] FROM events WHERE label = 'session.error'"
        ).fetchall()
        assert labels == [("model_overloaded_error", "terminal")]


def test_threads_are_lanes_of_sub_agents(tmp_path: Path) -> None:
    """The events of a thread's own stream are a lane; the primary thread is the lane of the program."""
    child = exchange(
        3, f"/v1/sessions/{SESSION}/threads/{THREAD}/stream?beta=true", streamed(request(50, 2, 7))
    )
    primary_id = "sthr_primary"
    threads = [
        {
            "id": THREAD,
            "type": "session_thread",
            "parent_thread_id": primary_id,
            "agent": {"model": {"id": "claude-haiku-4-5"}},
        },
        {
            "id": primary_id,
            "type": "session_thread",
            "parent_thread_id": None,
            "agent": {"model": {"id": MODEL}},
        },
    ]
    about = exchange(2, f"/v1/sessions/{SESSION}/threads", json.dumps({"data": threads}).encode())
    primary = exchange(
        4,
        f"/v1/sessions/{SESSION}/threads/{primary_id}/events",
        json.dumps({"data": FIRST}).encode(),
    )
    created = event(
        5, "session.thread_created", 1.5, session_thread_id=THREAD, agent_name="Private Name"
    )
    with stored(tmp_path, [resource(), about, stream(5, [PROMPT, created]), child, primary]) as db:
        rows = db.execute(
            "SELECT lane, turn, query_source, model FROM attempts WHERE origin = 'managed' ORDER BY lane"
        ).fetchall()
        text = str(db.execute("SELECT * FROM events").fetchall())
    assert rows == [
        ("main", 1, "main", MODEL),
        (f"main/{THREAD}", 1, "sub_agent", "claude-haiku-4-5"),
    ]
    assert "Private" not in text
    assert THREAD in text


def test_evaluations_are_billed_but_are_not_turns(tmp_path: Path) -> None:
    """The evaluation of an outcome has usage and a verdict, and no number of a turn."""
    events = [
        event(1, "span.outcome_evaluation_start", 1, iteration=0, outcome_id="outc_1"),
        event(
            2,
            "span.outcome_evaluation_end",
            3,
            iteration=0,
            outcome_id="outc_1",
            outcome_evaluation_start_id="sevt_0001",
            result="needs_revision",
            explanation="private",
            usage=usage(5),
        ),
    ]
    with stored(tmp_path, [resource(), stream(2, events)]) as database:
        rows = database.execute(
            """
            SELECT attempts.turn, attempts.query_source, u.kind, u.input_tokens, labels['managed_word']
            FROM attempts JOIN usage AS u USING (session_id, attempt_id)
            JOIN events ON labels['attempt_id'] = attempts.attempt_id AND label = 'span.outcome_evaluation_end'
            """
        ).fetchall()
    assert rows == [(None, "side", "outcome_evaluation", 5, "needs_revision")]


def test_tools_that_the_client_runs_for_the_agent(tmp_path: Path) -> None:
    """In an environment of the client, a call of a built-in tool runs on the client."""
    events = [
        PROMPT,
        *FIRST,
        CALLS[0],
        event(27, "user.tool_result", 8, tool_use_id="sevt_0020", content=[]),
    ]
    with stored(tmp_path, [resource(), stream(2, events)]) as database:
        assert database.execute("SELECT runs_on, outcome FROM tool_calls").fetchall() == [
            ("client", "executed")
        ]


def test_declared_names_of_custom_tools_are_readable(tmp_path: Path) -> None:
    """Names that a request of the program declares stay readable."""
    body = json.dumps(
        {
            "name": "x",
            "model": MODEL,
            "tools": [
                {"type": "custom", "name": "refund", "input_schema": {}},
                {
                    "type": "mcp_toolset",
                    "mcp_server_name": "wiki",
                    "configs": [{"name": "read_page"}],
                },
            ],
        }
    ).encode()
    created = exchange(1, "/v1/agents?beta=true", b'{"id": "agent_1"}', method="POST")
    created = ModelExchange(
        created.place,
        created.attempt_id,
        created.started_ns,
        created.headers_ns,
        created.ended_ns,
        Question("POST", "/v1/agents?beta=true", {"anthropic-version": "2023-06-01"}, body),
        created.answer,
    )
    with stored(tmp_path, [created, resource(2), stream(3, ALL)]) as database:
        rows = database.execute(
            "SELECT name, server FROM tool_calls ORDER BY requested_ns"
        ).fetchall()
    assert rows == [("bash", None), ("read_page", "wiki"), ("refund", None)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"data": 5}',
        b'{"data": [1, null, {"id": 7, "type": "user.message"}, {"id": "sevt_1"}, {"id": "e", "type": 9}]}',
        b'{"data": [{"id": "sevt_1", "type": "span.model_request_end", "processed_at": "soon", "model_usage": 5}]}',
        b'{"data": [{"id": "sevt_1", "type": "agent.new_thing", "stop_reason": [], "error": 4, "usage": []}]}',
    ],
)
def test_hostile_bodies_do_not_stop_the_recording(tmp_path: Path, body: bytes) -> None:
    """What cannot be read is left out; the exchange itself is recorded."""
    made = exchange(2, f"/v1/sessions/{SESSION}/events", body)
    with stored(tmp_path, [made]) as database:
        kept = database.execute("SELECT count(*) FROM attempts WHERE origin = 'live'").fetchall()
        assert kept == [(1,)]


def plays() -> list[Play]:
    """Return a provider that creates a session, accepts a prompt, and sends its events as a stream and as a list."""

    def json_body(value: dict[str, Any]) -> Play:
        return play_chunks(200, JSON, json.dumps(value).encode())

    return [
        json_body(RESOURCE),
        json_body({"data": [PROMPT]}),
        play_chunks(200, SSE, *streamed(ALL)),
        json_body({"data": ALL, "next_page": None}),
    ]


def run_agent(url: str) -> list[str]:
    """Run a session of an agent with the real SDK; return the IDs of the events that it shows."""
    client: Any = agentobs.record(Anthropic(api_key="sk-ant-made-up", base_url=url))
    with agentobs.session("managed"):
        sessions = client.beta.sessions
        sessions.create(agent="agent_1", environment_id="env_1")
        text = {"type": "text", "text": "Hello"}
        sessions.events.send(SESSION, events=[{"type": "user.message", "content": [text]}])
        with sessions.events.stream(SESSION) as opened:
            shown = [each.id for each in opened]
        return shown + [each.id for each in sessions.events.list(SESSION)]


def test_the_sdk_is_recorded_live(tmp_path: Path) -> None:
    """The real SDK creates a session, sends a prompt, reads the stream, and lists the events; exporters get turns."""
    facts: list[Any] = []
    backend = agentobs.receiving(["*"], lambda written: facts.append(written.fact))
    with Collector() as collector:
        exporter = otlp.standard(collector.endpoint)
        with raw_provider(plays()) as provider, recording(tmp_path / "home", backend, exporter):
            assert run_agent(provider.url) == [each["id"] for each in (*ALL, *ALL)]
            assert flush()
            assert exporter.flush(20)
        spans = collector.spans()
    live = [each for each in facts if isinstance(each, Attempt) and each.origin == "managed"]
    assert [(each.turn, each.model) for each in live] == [(1, MODEL), (2, MODEL)]
    assert [each.outcome for each in facts if isinstance(each, Attempt)] == ["ok"] * 6
    assert [each.input_tokens for each in facts if isinstance(each, UsageRow)] == [100, 200]
    with connect(existing_home(tmp_path / "home")) as database:
        assert database.execute("SELECT turns, tool_calls, attempts FROM sessions").fetchall() == [
            (2, 0, 6)  # the provider ran all tools
        ]
    names = {span.span_id: span.name for span in spans}
    chats = [span for span in spans if span.name == f"chat {MODEL}"]
    assert [span.attributes["gen_ai.usage.output_tokens"] for span in chats] == [101, 201]
    assert all(span.end - span.start == 2 * 10**9 for span in chats)
    assert all(names[span.parent] == "invoke_agent" for span in chats)
    tools = {span.name: names[span.parent] for span in spans if "execute_tool" in span.name}
    assert tools["execute_tool bash"] == f"chat {MODEL}"
    assert len(tools) == 3


def test_a_session_with_a_managed_agent_replays(tmp_path: Path) -> None:
    """The fixture contains only the requests of the program, and answers them."""
    with raw_provider(plays()) as provider, recording(tmp_path / "home"):
        live = run_agent(provider.url)
    fixture = frozen(tmp_path, last_session(tmp_path / "home"), "managed")
    assert len(fixture.requests) == 4
    with Replayer(fixture) as replay:
        assert replay.run(run_agent, NOWHERE) == live
    assert replay.progress.requests_matched == 4


@pytest.mark.slow
def test_show_and_the_pages_of_a_session_list_its_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turns and calls are in the timeline, on the page of the session, and on the pages of its attempts."""
    home = a_home(tmp_path)
    record(home, [start(1), resource(), stream(2, ALL), end(1, at=1_800_000_000_000_000_000)])
    ingest(home)
    shown = Shell(home.path, capsys)("show", "story").out
    assert shown.count("request ") >= 2
    assert "call bash" in shown
    with serving(home) as client:
        page = client.get(f"/sessions/{session_id(1)}?tab=steps")
        assert page.status == 200
        steps = page.html.partition('id="steps"')[2]
        assert steps.count(MODEL) >= 2
        assert "bash" in steps
        with connect(home) as database:
            ids = database.execute("SELECT attempt_id FROM attempts").fetchall()
        assert len(ids) == 4
        for (attempt_id,) in ids:
            got = client.get(f"/attempts/{attempt_id}")
            assert got.status == 200, got.html
        assert client.press(f"/sessions/{session_id(1)}/transcript").status == 200


def test_words_and_ids_that_are_not_those_of_the_provider_are_digests(tmp_path: Path) -> None:
    """A gateway may send any text as a verdict or an ID; facts contain only its digest."""
    events = [
        {
            "id": "Ada Lovelace",
            "type": "span.outcome_evaluation_end",
            "processed_at": f"{DAY}01Z",
            "result": "Ada",
            "outcome_id": "ada",
            "session_thread_id": "ada@example.com",
            "evaluated_permission": "Ada",
            "usage": usage(1),
        }
    ]
    with stored(tmp_path, [resource(), stream(2, events)]) as database:
        [(labels,)] = database.execute(
            "SELECT labels FROM events WHERE kind = 'managed_agent'"
        ).fetchall()
        rows = str(
            [database.execute(f"FROM {table}").fetchall() for table in ("usage", "attempts")]
        )
    digests = {name for name, text in labels.items() if text.startswith("digest:")}
    assert digests == {
        "managed_event_id",
        "managed_word",
        "managed_outcome_id",
        "managed_thread_id",
        "managed_permission",
    }
    assert "Ada" not in rows

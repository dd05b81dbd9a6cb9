"""Logs of Claude Code since 2.1.300: logged requests, files of sub-agents, the client's own count, unknown lines.

The logs are made up, in the shape of logs that version 2.1.332 wrote.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange
from agentobs.store.duckdb.connection import connect, named
from tests.importers.recorded_agent import lines, put, run, session_of

SESSION = "5f0c2a4e-1b7d-4c3a-9e60-000000000001"
MODEL = "claude-opus-4-8"
SHAPE: dict[str, Any] = {
    "system": [
        {"type": "text", "text": "You are an agent."},
        {"type": "text", "text": "Be brief."},
    ],
    "tools": [{"name": "Bash", "description": "Run", "input_schema": {"type": "object"}}],
}
CACHE = {"type": "ephemeral"}


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Log:
    """Writes the lines of one file, each connected to the line before it."""

    def __init__(self, agent_id: str | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.agent_id = agent_id
        self.parent: str | None = None

    def add(self, kind: str, **value: Any) -> dict[str, Any]:
        """Add a line that is not an entry."""
        agent = {"agentId": self.agent_id} if self.agent_id else {}
        self.lines.append({"type": kind, "sessionId": SESSION, **agent, **value})
        return self.lines[-1]

    def entry(self, kind: str, **value: Any) -> dict[str, Any]:
        """Add an entry, ten seconds after the entry before it."""
        number = len(self.lines)
        uuid = f"{self.agent_id or 'main'}-{number}"
        at = f"2026-10-05T10:{number // 6:02d}:{number % 6 * 10:02d}.000Z"
        connected = {
            "parentUuid": self.parent,
            "isSidechain": self.agent_id is not None,
            "uuid": uuid,
        }
        self.parent = uuid
        return self.add(kind, **connected, timestamp=at, version="2.1.332", **value)

    def prompt(self, content: Any, **value: Any) -> None:
        self.entry("user", message={"role": "user", "content": content}, **value)
        self.entry("attachment", attachment={"type": "environment"}, rendered=[{"content": "env"}])

    def answer(self, number: int, *content: dict[str, Any], request: str | None = None) -> None:
        """Add one line for each block, each with the same usage, as the client does."""
        calls = any(block["type"] == "tool_use" for block in content)
        usage = {
            "input_tokens": 100,
            "output_tokens": 10,
            "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 7,
        }
        for index, block in enumerate(content):
            self.entry(
                "assistant",
                message={
                    "id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL, "content": [block],
                    "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None, "usage": usage,
                },
                requestId=f"req_{number}", requestRef=request, apiBlockIndex=index, madeBy="model",
            )  # fmt: skip

    def results(self, *results: tuple[str, str], **value: Any) -> None:
        for tool_use_id, text in results:
            block = {
                "tool_use_id": tool_use_id,
                "type": "tool_result",
                "content": text,
                "is_error": False,
            }
            self.entry("user", message={"role": "user", "content": [block]}, **value)

    def cost(self, responses: int, **more: int) -> None:
        counts = {
            "inputTokens": 100,
            "outputTokens": 10,
            "cacheReadInputTokens": 5,
            "cacheCreationInputTokens": 7,
        }
        used = {name: count * responses + more.get(name, 0) for name, count in counts.items()}
        self.add("cost-state", totalCostUSD=0.1, modelUsage={MODEL: used})


def call(number: int, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_0{number}", "name": name, "input": arguments}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


FIRST = {"role": "user", "content": [text("reminder"), text("Look")]}
ANSWER = [text("I look."), call(1, command="ls")]
RESULTS = [{"tool_use_id": "toolu_01", "type": "tool_result", "content": "a b", "is_error": False}]


def main_log() -> Log:
    """Return a session of two requests, which the log contains in parts."""
    log = Log()
    log.add("queue-operation", operation="enqueue", content="Look")
    log.prompt("Look")
    log.add("api-request-shape", shapeHash="s1", shape=SHAPE)
    log.add("api-request-blob", hash="h1", message=FIRST)
    params = {
        "model": MODEL,
        "betas": ["a-1", "b-2"],
        "max_tokens": 64,
        "thinking": {"type": "adaptive"},
    }
    breakpoints = [
        {"path": ["system", 1], "value": CACHE},
        {"path": ["messages", 0, "content", 1], "value": CACHE},
    ]
    log.add(
        "api-request",
        id="r1",
        shapeHash="s1",
        params=params,
        keep=0,
        tail=["h1"],
        cacheControl=breakpoints,
    )
    log.answer(1, *ANSWER, request="r1")
    log.results(("toolu_01", "a b"), permissionDecision={"decision": "accept", "source": "config"})
    log.entry("attachment", attachment={"type": "prompt_snapshot"})
    tail = [
        digest({"role": "assistant", "content": ANSWER}),
        digest({"role": "user", "content": RESULTS}),
    ]
    gone = [{"path": ["messages", 9], "value": CACHE}]
    log.add(
        "api-request",
        id="r2",
        shapeHash="s1",
        params=params,
        base="r1",
        keep=1,
        tail=tail,
        cacheControl=gone,
    )
    log.answer(2, text("Done."), request="r2")
    log.cost(2)
    return log


def imported(tmp_path: Path, log: Log, *agents: tuple[Log, dict[str, Any]]) -> tuple[Home, str]:
    """Import a session with the files of its sub-agents; return the home and the output."""
    home, folder = open_home(tmp_path / "home"), tmp_path / "projects" / "-work"
    put(folder / f"{SESSION}.jsonl", lines(log.lines))
    for agent, meta in agents:
        base = folder / SESSION / "subagents"
        put(base / f"agent-{agent.agent_id}.jsonl", lines(agent.lines))
        put(base / f"agent-{agent.agent_id}.meta.json", meta)
    result = run(home, "import", "claude-code", tmp_path / "projects")
    assert result.exit_code == 0, result.output
    return home, result.output


def test_logged_requests_are_complete(tmp_path: Path) -> None:
    """System prompt, tools, settings, messages, breakpoints and beta features are those of the request."""
    home, output = imported(tmp_path, main_log())
    assert (
        "2 responses, 1 tool calls; not replayable: the log does not contain the metadata of its requests, "
        in output
    )
    recording = read_session(home, SESSION.replace("-", ""), segment_ids(home))
    questions = [each.question for each in recording.exchanges if isinstance(each, ModelExchange)]
    settings = {"model": MODEL, "max_tokens": 64, "thinking": {"type": "adaptive"}}
    system = SHAPE["system"]
    first = {
        **settings, "tools": SHAPE["tools"], "system": [system[0], {**system[1], "cache_control": CACHE}],
        "messages": [{"role": "user", "content": [text("reminder"), {**text("Look"), "cache_control": CACHE}]}],
    }  # fmt: skip
    history = [
        FIRST,
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": RESULTS},
    ]
    second = {**settings, **SHAPE, "messages": history}
    assert [json.loads(each.body) for each in questions] == [first, second]
    assert {each.headers["anthropic-beta"] for each in questions} == {"a-1,b-2"}


@pytest.mark.slow
def test_usage_counts_once_for_each_response(tmp_path: Path) -> None:
    """Several lines of a response repeat its usage; they have a stop reason, so the cost is exact."""
    home, _ = imported(tmp_path, main_log())
    session = session_of(home)
    assert (session["turns"], session["tool_calls"], session["cost_status"]) == (2, 1, "exact")
    assert (session["incomplete"], "unlogged_input_tokens" in session["tags"]) == (False, False)
    with connect(home) as connection:
        tokens = connection.execute(
            "SELECT input_tokens, output_tokens, interactions FROM sessions"
        ).fetchone()
    assert tokens == (200, 20, 1)


@pytest.mark.slow
def test_a_compaction_belongs_to_the_next_request(tmp_path: Path) -> None:
    """A compaction between two requests, or before a prompt, belongs to the turn of the request that was sent after it.

    In the waterfall it precedes this request, and it is the reason for its cache miss. The event of a hook belongs to
    the turn before it.
    """
    log = Log()
    log.prompt("Look")
    log.answer(1, call(1, command="ls"))
    log.results(("toolu_01", "a b"))
    metadata = {"trigger": "auto", "preTokens": 90, "tokensSaved": 20}
    log.entry("system", subtype="microcompact_boundary", microcompactMetadata=metadata)
    log.answer(2, call(2, command="ls"))
    log.results(("toolu_02", "a b"))
    log.answer(3, text("Done."))
    log.entry("system", subtype="stop_hook_summary")
    log.entry("system", subtype="compact_boundary", compactMetadata={"trigger": "manual"})
    log.prompt("Go on")
    log.answer(4, text("Yes."))
    home, _ = imported(tmp_path, log)
    session = session_of(home)["session_id"]
    with connect(home) as connection:
        events = connection.execute("SELECT kind, turn FROM events ORDER BY at_ns").fetchall()
        assert events == [("compaction", 2), ("hook", 3), ("compaction", 4)]
        sql = "SELECT turn, interaction_id FROM attempts SEMI JOIN events USING (turn, interaction_id) ORDER BY turn"
        assert [turn for turn, _ in connection.execute(sql).fetchall()] == [2, 3, 4]
        context = named(connection, "context_growth", session_id=session).fetchall()
        assert [row[1] for row in context if row[10] is not None] == [2, 4]
        misses = connection.execute(
            "SELECT turn, reason, compared_turn FROM cache_misses ORDER BY turn"
        )
        assert misses.fetchall() == [(3, "unknown", 2)]
        losses = connection.execute(
            "SELECT turn, reason, compared_turn FROM cache_losses ORDER BY turn"
        )
        assert losses.fetchall() == [(2, "compaction", 1), (3, "unknown", 2), (4, "compaction", 3)]
        rows = named(connection, "session_waterfall", session_id=session).fetchall()
    steps = [(row[0], row[5]) for row in rows if row[0] in ("request", "compaction")]
    assert steps == [
        ("request", 1), ("compaction", 2), ("request", 2), ("request", 3), ("compaction", 4), ("request", 4),
    ]  # fmt: skip


@pytest.mark.slow
def test_unlogged_tokens_are_reported(tmp_path: Path) -> None:
    """The responses of compactions are counted by the client, but not logged, so the cost is a lower bound."""
    log = main_log()
    log.entry(
        "system", subtype="compact_boundary", content="Conversation compacted",
        compactMetadata={"trigger": "manual", "preTokens": 196, "postTokens": 50},
    )  # fmt: skip
    log.prompt("Summary", isCompactSummary=True)
    log.prompt("Go on")
    log.answer(3, text("Yes."))
    log.cost(3, inputTokens=109, outputTokens=29)
    home, output = imported(tmp_path, log)
    assert "not in the log: 138 tokens that the client counted" in output
    session = session_of(home)
    assert (session["incomplete"], session["dropped"], session["turns"]) == (True, 1, 3)
    tags = session["tags"]
    assert (tags["unlogged_input_tokens"], tags["unlogged_output_tokens"]) == ("109", "29")
    with connect(home) as connection:
        sql = "SELECT label, numbers['tokens_before'], numbers['tokens_after'] FROM events WHERE kind = 'compaction'"
        assert connection.execute(sql).fetchall() == [("manual", 196, 50)]
        assert connection.execute("SELECT DISTINCT cost_status FROM audited_costs").fetchall() == [
            ("lower_bound",)
        ]


@pytest.mark.slow
def test_responses_of_background_agents_are_not_missing(tmp_path: Path) -> None:
    """A sub-agent in the background may respond after the last entry of the main agent; the client counted it."""
    log, agent = main_log(), Log("aaa1")
    log.cost(3)
    for _ in range(30):
        agent.prompt("work")
    agent.answer(9, text("Late."))
    home, output = imported(tmp_path, log, (agent, {}))
    assert "not in the log" not in output
    assert (session_of(home)["turns"], session_of(home)["incomplete"]) == (3, False)


@pytest.mark.slow
def test_a_fork_has_no_count_of_its_own(tmp_path: Path) -> None:
    """The count of a fork includes the original session, so it says nothing about missing responses."""
    log = main_log()
    log.lines[-1]["modelUsage"][MODEL]["inputTokens"] = 9_999
    for line in log.lines:
        if line["type"] == "assistant":
            line["requestSessionId"] = "another"
    home, output = imported(tmp_path, log)
    assert "not in the log" not in output
    assert not session_of(home)["incomplete"]


def test_nested_sub_agents_belong_to_their_calls(tmp_path: Path) -> None:
    """`agent-<id>.meta.json` names the call that started a sub-agent, even if another sub-agent sent the call."""
    log = Log()
    log.prompt("Delegate")
    log.answer(1, call(1, "Agent", prompt="outer"))
    log.results(("toolu_01", "done"))
    log.answer(2, text("Done."))
    outer, inner = Log("aaa1"), Log("bbb2")
    outer.prompt("outer")
    outer.answer(3, call(2, "Agent", prompt="inner"))
    outer.results(("toolu_02", "done"))
    outer.answer(4, text("Outer."))
    inner.prompt("inner")
    inner.answer(5, text("Inner."))
    home, output = imported(
        tmp_path, log, (outer, {"toolUseId": "toolu_01"}), (inner, {"toolUseId": "toolu_02"})
    )
    assert "5 responses, 2 tool calls, 2 agents" in output
    with connect(home) as connection:
        lanes = connection.execute("SELECT DISTINCT lane FROM attempts ORDER BY lane").fetchall()
        assert connection.execute("SELECT interactions FROM sessions").fetchall() == [(1,)]
    assert lanes == [("main",), ("main/toolu_01",), ("main/toolu_01/toolu_02",)]


def test_unknown_lines_are_counted_once(tmp_path: Path) -> None:
    """Lines of unknown types are reported in one line; entries of unknown types still connect other entries."""
    log = Log()
    log.prompt("One")
    for _ in range(3):
        log.add("telepathy", thought="?")
    log.entry("hologram", image="?")
    log.answer(1, text("Yes."))
    home, output = imported(tmp_path, log)
    assert (
        output.splitlines()[-1]
        == "4 lines of unknown types were not imported: telepathy (3), hologram (1)"
    )
    [exchange] = read_session(home, SESSION.replace("-", ""), segment_ids(home)).exchanges
    assert isinstance(exchange, ModelExchange)
    assert json.loads(exchange.question.body)["messages"] == [
        {"role": "user", "content": [text("One")]}
    ]


def test_denied_calls_are_denied(tmp_path: Path) -> None:
    """The client logs its permission decision with the result."""
    log = Log()
    log.prompt("Remove")
    log.answer(1, call(1, command="rm"), call(2, command="ls"))
    log.results(
        ("toolu_01", "This command requires approval"), permissionDecision={"decision": "reject"}
    )
    log.results(("toolu_02", "a"), permissionDecision={"decision": "accept"})
    log.answer(2, text("Denied."))
    home, _ = imported(tmp_path, log)
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT tool_use_id, outcome FROM tool_calls ORDER BY 1"
        ).fetchall()
    assert rows == [("toolu_01", "denied"), ("toolu_02", "executed")]


def test_incomplete_requests_are_rebuilt_from_the_entries(tmp_path: Path) -> None:
    """If a part of a request is missing or impossible, only the conversation is rebuilt, and the import reports
    this.
    """
    log = main_log()
    for line in log.lines:
        if line.get("id") == "r1":
            line |= {"base": "r1", "keep": 0}
        if line.get("hash") == "h1":
            line["hash"] = "other"
    home, output = imported(tmp_path, log)
    assert (
        "the log does not contain the system prompt, the tools and the settings of its requests"
        in output
    )
    recording = read_session(home, SESSION.replace("-", ""), segment_ids(home))
    first = next(each for each in recording.exchanges if isinstance(each, ModelExchange))
    assert json.loads(first.question.body) == {
        "model": MODEL,
        "messages": [{"role": "user", "content": [text("Look")]}],
    }

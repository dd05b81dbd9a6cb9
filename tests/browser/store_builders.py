"""The stores of the browser tests, each built once per run: by the recorder, by importers, or with SQL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from agentobs.ledger import book_of
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.recorder import Recorder
from agentobs.sink import Record
from agentobs.store.duckdb import generations, price_tables
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.schema import SETTINGS, migrate
from tests.browser.hostile import add_to_labels, record_hostile_sessions
from tests.browser.synthetic_sessions import SECOND, SyntheticSession, text, thinking
from tests.exporters.sample_session import sample_home
from tests.wire import corpus

ROOT = Path(__file__).parents[2]
SESSIONS = 20_000
"""The number of sessions of the large store: 400 pages of the list."""
SECONDS_APART = 300
"""The time between the starts of two sessions of the large store, which covers 69 days."""
TURNS = 1_000
"""The number of turns in the main lane of the long session."""
FIRST_NS = 1_790_000_000_000_000_000
"""2026-09-21, the start of the synthetic sessions."""
DAY = 86_400 * SECOND
WAITING_BYTES = 16 * 1024 * 1024
"""The number of bytes after which to wait for the recorder, whose bounded queue drops records when it is full."""


@contextlib.contextmanager
def recording(home: Home) -> Iterator[Callable[[Record], None]]:
    """Yield a function that records facts with a real recorder; no record may be dropped."""
    recorder, given = Recorder(home), 0

    def emit(record: Record) -> None:
        nonlocal given
        recorder(record)
        given += len(getattr(getattr(record, "question", None), "body", b"")) + 1024
        if given > WAITING_BYTES:
            assert recorder.flush(60)
            given = 0

    yield emit
    assert recorder.close(60)
    assert recorder.statistics().dropped == 0


def empty(path: Path) -> Home:
    """Build an empty store."""
    return open_home(path)


def one(path: Path) -> Home:
    """Build a store with one session of our agent loop, with tools, a hook, an approval and a sub-agent."""
    return sample_home(path)


def long(path: Path, turns: int = TURNS) -> Home:
    """Build a store with one session of a thousand turns, with sub-agents and compactions."""
    home = open_home(path)
    with recording(home) as emit:
        story = SyntheticSession(emit, "long-haul", FIRST_NS, branch="main", seed=7)
        for begin in range(0, turns, 50):
            with story.interaction(f"Go through the orders from {begin} on."):
                for number in range(begin, begin + 50):
                    _long_turn(story, number)
            story.advance(40)
        story.end()
    ingest(home)
    return home


def _long_turn(story: SyntheticSession, number: int) -> None:
    if number and number % 150 == 0:
        story.compact()
    call = _call(story, "find_order", order=str(number))
    failed = number % 37 == 5
    if number % 40 == 39:
        started = _call(story, "agent", prompt=f"What is known of order {number}?")
        story.turn(text("I ask somebody."), call, started)
        answer = story.run_call(call, "paid")
        with story.sub_agent(started):
            looks = _call(story, "search_stock", thing="lamp")
            story.turn(looks, model="claude-haiku-5-5", seconds=1.5)
            story.results(story.run_call(looks, "7 in stock", seconds=0.4))
            story.turn(text("It is in stock."), model="claude-haiku-5-5", seconds=1.0)
        result = {"type": "tool_result", "tool_use_id": started["id"], "content": "It is in stock."}
        story.results(answer, result)
        return
    story.turn(call, seconds=2.0, fails=("overloaded_error",) if number % 211 == 100 else ())
    story.results(
        story.run_call(
            call,
            "no such order" if failed else f"order {number}: paid, sent on Monday",
            seconds=0.7,
            is_error=failed,
            waited=9.0 if number % 90 == 20 else 0.0,
        )
    )


def _call(story: SyntheticSession, tool: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": story.call_id(), "name": tool, "input": given}


def shop(path: Path) -> Home:
    """Build a store like that of a team after two weeks: several agents, mostly successful sessions, some failed, one
    running.
    """
    home = open_home(path)
    with recording(home) as emit:
        for number in range(60):
            _shop_session(emit, number)
    ingest(home)
    return home


def live(path: Path) -> Home:
    """Build the same store as `shop`, into which an agent continues to record."""
    return shop(path)


AGENTS = ("support", "refunds", "triage", "nightly-audit")
SENT = "Order {} is paid and was sent on Monday. You can expect it tomorrow."
MODELS = ("claude-sonnet-5-5", "claude-opus-5-5", "claude-haiku-5-5")


def _shop_session(emit: Callable[[Record], None], number: int) -> None:
    at_ns = FIRST_NS + 46 * DAY + number * DAY // 4 + number * 977 * SECOND
    name, model = AGENTS[number * 7 % 4], MODELS[number * 5 % 3]
    if number % 13 == 11:
        model = "in-house-1"
    tags = {"branch": "main" if number % 3 else "try-cache", "team": "shop"}
    story = SyntheticSession(emit, name, at_ns, model=model, seed=100 + number, **tags)
    fails = number % 7 == 4
    for asked in range(1 + number % 3):
        with story.interaction(
            f"Where is order {4700 + number}?" if not asked else "And can I have my money back?",
            "max_turns" if fails and asked == number % 3 else "success",
        ):
            for turn in range(2 + (number * 3 + asked) % 6):
                _shop_turn(story, number, turn, stuck=fails)
            result = "I could not find it." if fails else SENT.format(4700 + number)
            story.turn(text(result), seconds=3.0)
        story.advance(25)
    if number == 59:
        return
    if fails:
        story.end("failed", "TimeoutError" if number % 14 == 4 else "max_turns")
    else:
        story.end()


def _shop_turn(story: SyntheticSession, number: int, turn: int, *, stuck: bool) -> None:
    if turn == 2 and number % 4 == 1:
        started = _call(story, "agent", prompt="Is the blue lamp in stock?")
        also = _call(story, "find_order", order=str(4700 + number))
        story.turn(text("Let me ask."), also, started, seconds=5.0)
        found = story.run_call(also, "paid, sent on Monday", seconds=0.5)
        with story.sub_agent(started):
            looks = _call(story, "search_stock", thing="blue lamp")
            story.turn(looks, model="claude-haiku-5-5", seconds=1.8)
            story.results(story.run_call(looks, "7 in stock", seconds=0.9))
            story.turn(text("Seven are in stock."), model="claude-haiku-5-5", seconds=1.2)
        story.results(
            found,
            {"type": "tool_result", "tool_use_id": started["id"], "content": "Seven are in stock."},
        )
        return
    tool = ("find_order", "refund", "search_stock", "send_mail")[turn % 4]
    call = _call(story, tool, order="4711" if stuck else str(4700 + number + turn))
    story.turn(
        thinking("The number may be wrong; I look first."),
        text("I look it up."),
        call,
        seconds=3.5 if turn else 6.0,
        fails=("overloaded_error",) if (number + turn) % 9 == 3 else (),
    )
    broken = stuck or (number + turn) % 11 == 6
    story.results(
        story.run_call(
            call,
            "TimeoutError: the order service did not answer" if broken else "paid, sent on Monday",
            seconds=8.0 if broken else 1.2,
            is_error=broken,
            waited=(14.0 if number % 6 == 0 else 0.7) if tool == "refund" else 0.0,
            hook="audit" if tool == "send_mail" else None,
            denied=tool == "refund" and number % 5 == 2,
        )
    )


def transcripts(path: Path) -> Home:
    """Build a store from logs of Claude Code."""
    _agentobs(path, "import", "claude-code", str(transcripts_folder()))
    return open_home(path)


def wire(path: Path) -> Home:
    """Build a store from exchanges that were recorded by the tests of other clients."""
    _agentobs(path, "import", "wire", str(corpus.folder()))
    return open_home(path)


def transcripts_folder() -> Path:
    """Return the folder of Claude Code's logs, which may not exist."""
    result = os.environ.get("AGENTOBS_TRANSCRIPTS")
    return Path(result) if result else ROOT.parent / "shared" / "transcripts"


def hostile(path: Path) -> Home:
    """Build a store with hostile texts in every place."""
    home = open_home(path)
    with recording(home) as emit:
        at_length = record_hostile_sessions(emit, FIRST_NS)
    ingest(home)
    add_to_labels(home, at_length)
    return home


def _agentobs(home: Path, *arguments: str) -> None:
    """Run a command. Unreadable lines in logs of other programs are reported, and the command then fails."""
    command = [sys.executable, "-m", "agentobs", "--home", str(home), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def large(
    path: Path,
    sessions: int = SESSIONS,
    *,
    seconds_apart: int = SECONDS_APART,
    has_content: bool = False,
) -> Home:
    """Build a published store of many sessions, with rows made in SQL.

    Args:
        path: the home.
        sessions: the number of sessions.
        seconds_apart: the time between the starts of two sessions.
        has_content: whether requests refer to content. There is none, so their titles have to be in the text index.
    """
    home = open_home(path)
    draft = path.parent / f"{path.name}.draft"
    with duckdb.connect(str(draft), config=SETTINGS) as connection:
        migrate(connection)
        for statement in _ROWS:
            numbers = {"{sessions}": sessions, "{seconds_apart}": seconds_apart}
            for name, number in numbers.items():
                statement = statement.replace(name, str(number))
            connection.execute(statement)
        if has_content:
            connection.execute("UPDATE attempts SET request_content = 'q' || sequence")
        contexts = price_tables.new_contexts(connection, "usage", "prices", ["made"])
        price_tables.add(connection, contexts, book_of(home.path))
        connection.execute("CHECKPOINT")
    with generations.locked(home, 10):
        generations.publish(home, draft, 0, None)
    return home


_NS = f"{SECOND}::BIGINT"
_SESSION = "'made' AS segment_id, i AS sequence, printf('0199%06x7a118%017x', i, hash(i) % 999983) AS session_id"
_BEGAN = f"{FIRST_NS} + i * {{seconds_apart}} * {_NS}"
_TURN = _SESSION.replace("i AS sequence", "i * 5 + t AS sequence")
_TRIED = f"{_TURN}, printf('a%031x', i * 5 + t) AS attempt_id, 'main' AS lane, t + 1 AS turn"
_AT = f"{_BEGAN} + t * 8 * {_NS}"
_MODEL = (
    "['claude-sonnet-5-5', 'claude-opus-5-5', 'claude-haiku-5-5', 'claude-fable-5-2', 'in-house-1']"
    "[1 + i % 97 % 5]"
)
_FAILED, _TURNS = (
    "hash(i + 11) % 9 = 0",
    "FROM range({sessions}) r(i), range(5) q(t) WHERE t <= hash(i + 3) % 5",
)
_REASON = "CASE WHEN i % 2 = 0 THEN 'max_turns' ELSE 'TimeoutError' END"
_STUCK = "i % 23 = 4"
_TOOL = f"CASE WHEN {_STUCK} THEN 'bash' ELSE ['bash', 'read', 'grep', 'web_search'][1 + (i + t) % 4] END"
_SLOW = "(2 + hash(i + t) % 5)"
_ROWS = (
    f"""
    INSERT INTO session_starts BY NAME SELECT {_SESSION},
        ['support', 'coder', 'triage', 'nightly'][1 + i % 4] AS name, {_BEGAN} AS started_ns,
        '0.1.0' AS agentobs_version,
        MAP {{'branch': CASE WHEN i % 10 = 3 THEN 'try-cache' ELSE 'main' END, 'team': 'team-' || i % 7}} AS tags,
        'off' AS content
    FROM range({{sessions}}) r(i)
    """,
    f"""
    INSERT INTO session_ends BY NAME SELECT {_SESSION}, {_BEGAN} + 45 * {_NS} AS ended_ns,
        CASE WHEN {_FAILED} THEN 'failed' WHEN i % 41 = 9 THEN 'interrupted' ELSE 'completed' END AS outcome,
        CASE WHEN {_FAILED} THEN {_REASON} END AS reason,
        CASE WHEN {_FAILED} THEN 'result:' || {_REASON} END AS signature, 0 AS dropped
    FROM range({{sessions}}) r(i) WHERE i % 50 <> 7
    """,
    f"""
    INSERT INTO interaction_starts BY NAME SELECT {_SESSION}, printf('e%031x', i) AS interaction_id, 'main' AS lane,
        {_BEGAN} AS started_ns, 'main' AS query_source
    FROM range({{sessions}}) r(i)
    """,
    f"""
    INSERT INTO interaction_ends BY NAME SELECT {_SESSION}, printf('e%031x', i) AS interaction_id,
        {_BEGAN} + 45 * {_NS} AS ended_ns, CASE WHEN {_FAILED} THEN {_REASON} ELSE 'success' END AS result,
        {_FAILED} AS is_error, 'main' AS lane, 'main' AS query_source
    FROM range({{sessions}}) r(i) WHERE i % 50 <> 7
    """,
    f"""
    INSERT INTO attempts BY NAME SELECT {_TRIED}, printf('e%031x', i) AS interaction_id,
        printf('a%031x', i * 5 + t) AS llm_request_id, 1 AS attempt, {_AT} AS started_ns,
        {_SLOW} * {_NS} AS duration_ns, 800000000 AS first_chunk_ns, 'POST' AS method, '/v1/messages' AS endpoint,
        true AS makes_turns, true AS streamed, {_MODEL} AS model_requested, {_MODEL} AS model,
        CASE WHEN hash(i + t) % 60 = 0 THEN 529 ELSE 200 END AS status,
        CASE WHEN hash(i + t) % 60 = 0 THEN 'http_error' ELSE 'ok' END AS outcome,
        CASE WHEN hash(i + t) % 60 = 0 THEN 'overloaded_error' END AS error_type,
        'tool_use' AS stop_reason, 1 + 2 * t AS message_count, 1 AS tool_use_count, 4000 AS request_bytes,
        900 AS response_bytes, 30 AS chunk_count, 0 AS redactions, 'main' AS query_source
    {_TURNS}
    """,
    f"""
    INSERT INTO usage BY NAME SELECT {_TRIED.partition(", 'main'")[0]}, {_AT} AS at_ns, 0 AS iteration,
        'message' AS kind, true AS billed, {_MODEL} AS model, hash(i * 5 + t) % 3000 AS input_tokens,
        hash(i + 1) % 2000 AS output_tokens, hash(i + 2) % 120000 AS cache_read_tokens,
        hash(i + 4) % 3000 AS cache_write_5m_tokens, 0 AS cache_write_1h_tokens, 0 AS web_search_requests,
        'standard' AS service_tier, 'exact' AS certainty
    {_TURNS} AND hash(i + t) % 60 <> 0
    """,
    f"""
    INSERT INTO tool_uses BY NAME SELECT {_TRIED}, printf('e%031x', i) AS interaction_id,
        printf('toolu_%020x', i * 5 + t) AS tool_use_id, {_TOOL} AS name, 1 AS ordinal,
        {_AT} + {_SLOW} * {_NS} AS requested_ns, 100 AS input_bytes
    {_TURNS} AND hash(i + t) % 60 <> 0
    """,
    f"""
    INSERT INTO tool_results BY NAME SELECT {_TRIED}, printf('e%031x', i) AS interaction_id,
        printf('toolu_%020x', i * 5 + t) AS tool_use_id, {_AT} + {_SLOW} * {_NS} AS started_ns,
        {_NS} // 2 AS duration_ns, {_AT} + {_SLOW} * {_NS} + {_NS} // 2 AS result_ns, 'run' AS source,
        'executed' AS outcome, hash(i + t + 5) % 20 = 0 OR {_STUCK} AS is_error, 500 AS result_bytes,
        1 AS ordinal, 1 AS attempts, {_TOOL} AS tool
    {_TURNS} AND hash(i + t) % 60 <> 0
    """,
)
"""The statements that create the sessions.

One in 9 fails, one in 50 never ends, one in 23 has a tool that always fails, and one in 5 models has no price. Our
choice.
"""

MAKERS: dict[str, Callable[[Path], Home]] = {
    maker.__name__: maker
    for maker in (empty, one, long, shop, live, large, transcripts, wire, hostile)
}
"""The functions that build the stores, by name."""

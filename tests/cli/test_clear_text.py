"""Which texts stay readable in facts: labels, values of closed sets, declared names and exact forms of IDs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from anthropic import Anthropic
from anthropic.types.shared import ErrorType
from anthropic.types.stop_reason import StopReason

import agentobs
from agentobs import Label
from agentobs.agent.run_result import Subtype
from agentobs.provider.registry import terms
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.records.clear_text import ID_FIELDS, RULES, is_lane_segment, may_stay
from agentobs.records.exchanges import QuerySource
from agentobs.records.facts import InteractionResult, SessionStart, UsageRow, WorldAnswer
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from tests.agent.provider import Provider, call, message, streamed
from tests.cli.test_commands import Shell
from tests.exporters.sample_agents import calls, play, run_agent
from tests.replay.agents import KEY, MODEL
from tests.shared_stores import shared_store

CONSTANT = "a constant of the test"
TWO_WORDS = "two words"


def recorded(home: Path, agent: Callable[[], object]) -> Path:
    """Record what a function does, in a new home."""
    agentobs.stop_recorder()
    assert start_recorder(str(home), Options()) is not None
    try:
        agent()
    finally:
        assert agentobs.stop_recorder()
    return home


def rows(home: Path, sql: str) -> list[tuple[Any, ...]]:
    """Query a home."""
    with agentobs.connect(str(home)) as connection:
        return connection.execute(sql).fetchall()


def shown(home: Path, sql: str) -> list[tuple[Any, ...]]:
    """Query a home, with texts in place of digests, as local commands show them."""
    with open_store(str(home)) as store:
        return LabelTexts(store).replace_in_rows(rows(home, sql))


def send(url: str, **options: Any) -> None:
    """Send one request, and read the response as far as possible."""
    request: dict[str, Any] = {"model": MODEL, "max_tokens": 9, **options}
    request.setdefault("messages", [{"role": "user", "content": "Hello"}])
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
    with client.messages.stream(**request) as stream:
        stream.until_done()


LABELS = [
    Label.reviewed(TWO_WORDS, reason=CONSTANT),
    Label.reviewed("Über alles, " + "x" * 188, reason=CONSTANT),
    Label("x" * 128),
    Label("billing/refund@2"),
]


ENDINGS = ["plain", "result", "exception"]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Label], tuple[Any, ...]]:
    """Record a declared failure with each ending and label; return the rows of the sessions."""
    cases = list(itertools.product(ENDINGS, LABELS))

    def agent() -> None:
        for ending, label in cases:
            with contextlib.suppress(KeyError), agentobs.session("labels") as session:
                agentobs.fail(label)
                if ending == "result":
                    session.result({"refunds": 2})
                elif ending == "exception":
                    raise KeyError("order")

    home = recorded(tmp_path_factory.mktemp("labels") / "home", agent)
    sql = "SELECT status, reason, signature, dropped FROM sessions ORDER BY started_ns"
    return dict(zip(cases, rows(home, sql), strict=True))


@pytest.mark.parametrize("label", LABELS, ids=range(len(LABELS)))
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_label_is_a_reason_and_a_signature(
    failures: dict[tuple[str, Label], tuple[Any, ...]], label: Label, ending: str
) -> None:
    """A declared failure with any label has an end with this label as its reason, readable in facts."""
    assert failures[ending, label] == ("failed", label, f"declared:{label}", 0)


@pytest.mark.slow
def test_a_bundle_with_the_longest_signature_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reviewed label of the maximum length is a valid reason and signature in the bundle of a session as well."""
    label = LABELS[1]

    def agent() -> None:
        with agentobs.session("longest", tags={"why": LABELS[0]}):
            agentobs.fail(label)

    shell = Shell(recorded(tmp_path / "home", agent), capsys)
    [(session_id,)] = rows(shell.home, "SELECT session_id FROM sessions")
    assert shell("bundle", session_id, "-o", str(tmp_path / "one.bundle")).code == 0
    imported = shell("import", "bundle", str(tmp_path / "one.bundle"), home=tmp_path / "other")
    assert imported.code == 0, imported.err
    sql = "SELECT reason, signature, tags['why'] FROM sessions"
    assert rows(tmp_path / "other", sql) == [(label, f"declared:{label}", TWO_WORDS)]


TEXTS = [
    "",
    " ",
    "\n",
    "\x00",
    "\ud800",
    "é" * 5000,
    "a/b@c",
    "result:success",
    "declared:",
    "digest:" + "0" * 24,
]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """Record two sessions with each text; return their rows."""

    def agent() -> None:
        for text in TEXTS:
            error: Any = type("Odd", (Exception,), {})
            name = text.replace("\x00", "").replace("\ud800", "") or "Odd"
            error.__name__ = error.__qualname__ = name
            with agentobs.session(text, tags={text: text}), agentobs.span(f"app{text}"):
                agentobs.fail(text)
            with contextlib.suppress(error), agentobs.session(text):
                raise error(text)

    home = recorded(tmp_path_factory.mktemp("odd") / "home", agent)
    found = rows(home, "SELECT status, dropped, incomplete FROM sessions ORDER BY started_ns")
    assert len(found) == 2 * len(TEXTS)
    return {text: found[2 * at : 2 * at + 2] for at, text in enumerate(TEXTS)}


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_prevents_the_end_of_a_session(
    ends: dict[str, list[tuple[Any, ...]]], text: str
) -> None:
    """Any text can be a name, a tag, a reason, the name of a class or of a span; the session ends completely."""
    assert ends[text] == [("failed", 0, False), ("failed", 0, False)]


@pytest.mark.slow
def test_results_and_sources_stay_readable(tmp_path: Path) -> None:
    """A failure signature that is built from a closed set, and the sources of requests, are not digests."""

    def agent() -> None:
        reply = calls(
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "x"}}
        )
        with Provider([reply]) as provider, agentobs.session("limited"):

            async def run() -> None:
                async with provider.client() as client:
                    await play(client, max_turns=1)

            asyncio.run(run())

    home = recorded(tmp_path / "home", agent)
    sql = "SELECT status, reason, signature FROM sessions"
    assert rows(home, sql) == [("failed", "error_max_turns", "result:error_max_turns")]
    found = rows(
        home, "SELECT DISTINCT query_source FROM span_starts WHERE query_source IS NOT NULL"
    )
    assert found == [("main",)]


@pytest.mark.slow
def test_the_loop_leaves_no_digest_of_its_own_words(tmp_path: Path) -> None:
    """The facts of a run with retries, hooks and tools contain digests only as the keys of answers."""
    home = recorded(tmp_path / "home", run_agent)
    with agentobs.connect(str(home)) as connection:
        tables = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
        digests = {
            table: sum(
                "digest:" in str(row) for row in connection.execute(f'FROM "{table}"').fetchall()
            )
            for table in tables
        }
    assert {name for name, count in digests.items() if count} <= {
        "world_answers",
        "world_questions",
        "event_log",
    }
    kinds = rows(home, "SELECT DISTINCT kind, label FROM events ORDER BY ALL")
    assert ("retry", "overloaded_error") in kinds
    assert ("hook", "success") in kinds


ATTACKS = [
    "ada", "Lovelace", "Ada", "decade", "cafe", "ada_lovelace", "ada-lovelace", "grace.hopper", "diary.txt",
    "ada:byron", "compaction:ada",
    "/home/ada/diary.txt", "home/ada/diary.txt", "~/diary", "C:/diary", "ada@example.org", "ada.byron@example.org",
    "toolu_ada", "toolu_adalovelace", "msg_ada-lovelace", "req_Ada1815", "call_ada", "file_tax-return", "gen-ada",
    "msgbatch_01/ada", "0612345678", "+31612345678", "claude-ada", "anthropic/ada", "claude-ada-4-5", "AdaError",
    "AdaException", "result:ada", "exception:Ada", "declared:ada", "agent-ada", "hook:ada", "main/ada", "ada:unpriced",
    "input_tokens:ada", "usage:ada", "platform:ada", "message:ada", "ada_tokens", "ada_error", "1.2.3-ada", "x86_ada",
]  # fmt: skip
"""Texts that a person or a model could write, even in forms that resemble those of terms, names and IDs."""


@pytest.mark.parametrize("text", ATTACKS)
def test_no_field_accepts_a_text_that_somebody_wrote(text: str) -> None:
    """No rule accepts a word, a path or an address, and no rule accepts a free part in a known form."""
    accepting = [
        (kind.__name__, field)
        for kind, rules in RULES.items()
        for field in [*rules, "any other field"]
        if may_stay(kind, field, text, terms())
    ]
    assert accepting == []
    assert not is_lane_segment(text)


def test_the_lanes_of_summaries_are_readable() -> None:
    """The agent loop numbers the lanes of its summaries, and a replay needs their names."""
    assert is_lane_segment("compaction:1")
    assert is_lane_segment("compaction:27")


@pytest.mark.parametrize(
    ("model", "is_readable"),
    [
        ("claude-sonnet-5", True),
        ("claude-opus-5[1m]", True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("anthropic/claude-4.5-sonnet-20250929", True),
        ("in-house-7b", True),
        ("in-house-7b-2026-11-01", True),
        ("in-house-7b-for-ada", False),
        ("claude-for-ada", False),
    ],
)
def test_models_of_responses(model: str, is_readable: bool) -> None:
    """The model of a response is readable if it is a Claude model, or a release of a model that a request declares."""
    assert may_stay(UsageRow, "model", model, {*terms(), "in-house-7b"}) is is_readable


@pytest.mark.parametrize(
    ("key", "is_readable"),
    [
        ("7", True),
        ("123456", True),
        ("1234567", False),
        ("toolu_1", True),
        ("Ada", False),
        ("٣", False),
    ],
)
def test_keys_of_world_answers(key: str, is_readable: bool) -> None:
    """The key of an answer of the world is readable if it is an ID or a number of at most six digits."""
    assert may_stay(WorldAnswer, "key", key, terms()) is is_readable


def test_every_field_for_labels_has_a_rule() -> None:
    """A new field with text needs its own rule."""
    for kind, rules in RULES.items():
        for name, hint in get_type_hints(kind).items():
            if hint is Label or Label in get_args(hint):
                assert name in rules, (kind, name)
    assert (SessionStart, "continues_session_id") in ID_FIELDS


def test_the_closed_sets_are_complete() -> None:
    """The closed sets contain all values of the SDK's types and of the loop."""
    for literal in (StopReason, ErrorType):
        assert set(get_args(literal)) <= terms()
    assert set(get_args(Subtype)) <= set(get_args(InteractionResult))
    for source in get_args(QuerySource):
        for kind, rules in RULES.items():
            if "query_source" in rules:
                assert may_stay(kind, "query_source", source, frozenset())


INVENTED: dict[str, Any] = {
    "stop_reason": "ada_stopped",
    "id": "msg_ada-lovelace",
    "model": "ada-1815",
    "usage": {
        "input_tokens": 1,
        "output_tokens": 1,
        "ada_tokens": 3,
        "service_tier": "ada",
        "server_tool_use": {"ada_requests": 2},
    },
}


@pytest.fixture(scope="module")
def invented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with a session in which a server invents every term of its response."""

    def agent() -> None:
        reply = message(call("toolu_ada", "ada_tool"), **INVENTED)
        with (
            Provider([streamed(reply)]) as provider,
            agentobs.session("server", tags={"customer ada": "x"}) as session,
        ):
            send(provider.base_url, tool_choice={"type": "tool", "name": "ada_choice"})
            session.result(1)

    return recorded(tmp_path_factory.mktemp("invented") / "home", agent)


@pytest.mark.slow
def test_terms_that_a_server_invents_are_digests_with_texts(invented: Path) -> None:
    """No invented term is in the store, and local views show all of them."""
    with agentobs.connect(str(invented)) as connection:
        for (table,) in connection.execute("SHOW TABLES").fetchall():
            found = str(connection.execute(f'FROM "{table}"').fetchall()).lower()
            # Digests consist of hexadecimal digits, which can contain the name by chance.
            assert "ada" not in re.sub(r"[0-9a-f]{12,}", "", found), table
    sql = "SELECT stop_reason, message_id, model, parameters['tool_choice.name'] FROM attempts"
    assert shown(invented, sql) == [("ada_stopped", "msg_ada-lovelace", "ada-1815", "ada_choice")]
    sql = "SELECT service_tier, other_counts, server_requests, note FROM usage"
    assert shown(invented, sql) == [
        ("ada", {"ada_tokens": 3}, {"ada_requests": 2}, "ada_tokens:unpriced")
    ]
    assert shown(invented, "SELECT name, tool_use_id FROM tool_uses") == [("ada_tool", "toolu_ada")]
    assert shown(invented, "SELECT tags FROM session_starts") == [({"customer ada": "x"},)]


@pytest.mark.slow
def test_every_text_is_a_parameter_of_a_query(
    invented: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parameter is compared as its digest in every column, not only for names and tags."""
    columns = {
        ("attempts", "stop_reason"): "ada_stopped",
        ("attempts", "message_id"): "msg_ada-lovelace",
        ("usage", "model"): "ada-1815",
        ("usage", "service_tier"): "ada",
        ("tool_uses", "tool_use_id"): "toolu_ada",
    }
    counts = (
        f"(SELECT count(*) FROM {table} WHERE {column} = ${column}) AS {column}"
        for table, column in columns
    )
    parameters = (
        argument
        for (_, column), value in columns.items()
        for argument in ("--param", f"{column}={value}")
    )
    found = Shell(invented, capsys)("sql", f"SELECT {', '.join(counts)}", *parameters, "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out) == {column: 1 for _, column in columns}


@pytest.mark.slow
def test_local_commands_show_the_terms_and_shared_files_do_not(
    invented: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Doctor, diff, reprice and tools show texts; files that can be shared contain digests."""
    shell = Shell(invented, capsys)
    [(session_id,)] = rows(invented, "SELECT session_id FROM sessions")
    assert "ada-1815" in shell("doctor").out
    report, page = tmp_path / "diff.html", tmp_path / "session.html"
    with shared_store(invented):
        for command in ("reprice", "models"):
            assert "ada-1815" in shell(command).out, command
        assert "ada_tool" in shell("tools").out
        assert "ada_tool" in shell("show", session_id).out
        arguments = ["diff", session_id, session_id, "--report", str(report), "--light", "--json"]
        assert "ada_tool" in shell(*arguments).out
        assert shell("report", session_id, "-o", str(page), "--light").code == 0
    for path in (report, page):
        assert "ada_" not in path.read_text(), path


PRICES = """
[[price]]
models = ["ada-1815"]
input = 3
output = 4
source = "contract"
checked = 2026-11-01
"""


@pytest.mark.slow
def test_an_own_price_applies_to_a_model_whose_name_is_a_digest(
    invented: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A price in the user's file is found by the name of the model, which only the file and the content contain."""
    assert rows(
        invented, "SELECT count(*) FROM usage JOIN costs USING (attempt_id) WHERE cost_usd > 0"
    ) == [(0,)]
    file = invented.parent / "own.toml"
    file.write_text(PRICES)
    monkeypatch.setenv("AGENTOBS_PRICES", str(file))
    sql = "SELECT cost_usd * 1000000 = 3 * (input_tokens + cache_read_tokens) + 4 * output_tokens FROM costs"
    assert rows(invented, sql) == [(True,)]
    shell = Shell(invented, capsys)
    assert "ada-1815" in shell("cost", "--by", "model").out
    assert "ada-1815" in shell("models").out

"""Texts that people and models write are digests in facts, and readable in local views."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, get_type_hints

import duckdb
import pytest
from anthropic import Anthropic

import agentobs
from agentobs.provider.registry import terms
from agentobs.recording.journal.home import existing_home
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.clear_text import RULES, may_stay
from agentobs.records.facts import TABLES, SessionEnd, SessionStart, ToolUse, UsageRow
from agentobs.store.backend import open_store
from agentobs.store.duckdb.schema import create_tables
from agentobs.store.label_texts import LabelTexts
from agentobs.store.named_queries import bare_text
from tests import queries
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import serving
from tests.provider_script import script, streamed
from tests.replay.agents import KEY, MODEL

CUSTOMER, PATH, REASON = "ada@example.org", "/home/ada/secret.txt", "refunded-twice"
INVENTED = "open_the_vault"
CALLS = [
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    {"type": "tool_use", "id": PATH, "name": INVENTED, "input": {}},
]
LOOK = {"name": "look", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with one session, whose tags, reason and calls contain private texts."""
    home = tmp_path_factory.mktemp("private") / "home"
    agentobs.stop_recorder()
    with ServedProvider(script(streamed(*CALLS)), ServeOptions(match="order")) as provider:
        assert start_recorder(str(home), Options()) is not None
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        tags = {"customer": CUSTOMER, "file": PATH, "env": agentobs.Label("production")}
        with agentobs.session(CUSTOMER, tags=tags):
            message = {"role": "user", "content": "Hello"}
            with client.messages.stream(
                model=MODEL,
                max_tokens=9,
                messages=[message],  # type: ignore[list-item]
                tools=[LOOK],  # type: ignore[list-item]
            ) as stream:
                stream.until_done()
            agentobs.fail(REASON)
        assert agentobs.stop_recorder()
    return home


@pytest.fixture
def shell(home: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a function that runs commands in the home."""
    return Shell(home, capsys)


@pytest.mark.slow
def test_no_private_text_is_in_a_fact_or_in_the_store(home: Path, shell: Shell) -> None:
    assert shell("ingest").code == 0
    files = [*home.rglob("*.facts*"), *home.rglob("*.duckdb")]
    data = b"".join(path.read_bytes() for path in files if path.suffix != ".zst")
    rows = shell("sql", "SELECT * FROM sessions", "--json").out
    rows += shell("sql", "SELECT * FROM tool_calls", "--json").out
    for text in (CUSTOMER, PATH, REASON, INVENTED):
        assert text.encode() not in data
        assert text not in rows
    # What the program declares is readable.
    assert "production" in rows
    assert '"look"' in rows


@pytest.mark.slow
def test_local_views_show_the_texts(shell: Shell) -> None:
    shown = shell("show", CUSTOMER, "--facts").out
    assert CUSTOMER in shown
    assert REASON in shown
    assert INVENTED in shown
    assert INVENTED in shell("tools").out
    [listed] = [json.loads(line) for line in shell("sessions", "--json").out.splitlines()]
    assert (listed["name"], listed["reason"]) == (CUSTOMER, REASON)
    assert listed["tags"] == {"customer": CUSTOMER, "file": PATH, "env": "production"}


@pytest.mark.slow
def test_pages_and_comparisons_show_the_texts(home: Path, shell: Shell) -> None:
    """No digest is shown whose text is in the vault: in the steps of a session, the evidence and a comparison."""
    [session_id] = [row[0] for row in queries.query("SELECT session_id FROM sessions", home=home)]
    with serving(existing_home(home)) as client:
        page = client.get(f"/sessions/{session_id}").words
        compared = client.get(f"/compare?a={session_id}&b={session_id}").words
    for text in (page, compared, shell("diff", session_id, session_id).out):
        assert CUSTOMER in text
        assert "digest:" not in text
    assert INVENTED in page
    assert INVENTED in compared


@pytest.mark.slow
def test_filters_accept_the_texts(shell: Shell) -> None:
    """The argument of a filter is compared as its digest."""
    for name, value in (("customer", CUSTOMER), ("file", PATH), ("env", "production")):
        sql = f"SELECT count(*) AS n FROM sessions WHERE tags['{name}'] = $wanted"
        result = shell("sql", sql, "--param", f"wanted={value}", "--json").out
        assert json.loads(result) == {"n": 1}, name
    sql = "SELECT count(*) AS n FROM tool_uses WHERE name = $wanted"
    result = shell("sql", sql, "--param", f"wanted={INVENTED}", "--json").out
    assert json.loads(result) == {"n": 1}


def test_the_text_of_an_id_that_somebody_chose_is_found(home: Path) -> None:
    sql = "SELECT tool_use_id FROM tool_uses WHERE starts_with(tool_use_id, 'digest:')"
    with agentobs.connect(str(home)) as connection:
        found = connection.execute(sql).fetchall()
    with open_store(str(home)) as store:
        assert LabelTexts(store).replace_in_rows(found) == [(PATH,)]


def test_facts_have_the_rules_of_the_documentation() -> None:
    """Every field with text has a rule, and an unknown field would accept only IDs."""
    declared = frozenset(("look",)) | terms()
    cases = [
        (ToolUse, "name", "look", True),
        (ToolUse, "name", INVENTED, False),
        (ToolUse, "name", "web_search", True),
        (ToolUse, "tool_use_id", "toolu_013zUH5CLXBdHVFNNQhvjWMi", True),
        (ToolUse, "tool_use_id", "invoice", False),
        (SessionStart, "tags.value", "berlin", False),
        (SessionEnd, "reason", REASON, False),
        (SessionEnd, "signature", "result:error_max_turns", True),
        (SessionEnd, "signature", "result:ada", False),
        (UsageRow, "batch_result_id", "msgbatch_01/ada", False),
        (UsageRow, "model", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        (UsageRow, "model", "claude-sonnet-4-5@20250929", True),
        (UsageRow, "model", CUSTOMER, False),
        (UsageRow, "service_tier", "priority", True),
        (UsageRow, "service_tier", "ada", False),
    ]
    for kind, field, text, expected in cases:
        assert may_stay(kind, field, text, declared) is expected, (kind, field, text)


def test_each_class_of_facts_has_rules() -> None:
    """A class without rules could not be recorded."""
    assert set(RULES) == set(TABLES)


NEVER_TEXTS = frozenset(
    (
        "attempts.endpoint", "attempts.limit_hit", "attempts.origin", "attempts.parameters keys",
        "attempts.query_source", "attempts.rate_limits keys", "command_runs.signal", "events.numbers keys",
        "events.query_source", "exports.destination", "exports.profile", "file_changes.mode",
        "file_changes.previous_mode", "gaps.kind", "gaps.reason", "interaction_ends.query_source",
        "interaction_starts.query_source", "permissions.query_source", "permissions.reason_type",
        "permissions.resolver", "permissions.source", "provider_tool_results.outcome",
        "provider_tool_results.query_source", "provider_tool_uses.query_source", "session_starts.content",
        "session_starts.continues_session_id", "session_starts.live_exports keys",
        "session_starts.live_exports values", "session_starts.source", "span_starts.labels keys",
        "span_starts.labels values", "span_starts.numbers keys", "span_starts.query_source",
        "tool_results.error_kind", "tool_results.outcome", "tool_results.query_source", "tool_uses.query_source",
        "usage.certainty", "world_answers.kind", "world_answers.query_source",
        "workspace_states.failure",
    )
)  # fmt: skip
"""The labels of facts that come from closed sets of agentobs or from the code of the program, and so have no digest."""


def _a_digest(place: str) -> str:
    return f"digest:{hashlib.sha256(place.encode()).hexdigest()[:24]}"


def _rows_with_digests(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Insert a row into each table with a digest in each field that may contain one; return the fields by digest."""
    fields: dict[str, str] = {}
    for kind, table in TABLES.items():
        row: dict[str, Any] = {"session_id": "s", "segment_id": "g"}
        for field in dataclasses.fields(kind):
            hint = str(get_type_hints(kind)[field.name])
            ruled = {name.partition(".")[0] for name in RULES[kind]}
            place = f"{table}.{field.name}"
            if field.name.endswith("_content"):
                row[field.name] = "content"
            elif "Mapping" in hint:
                fields[_a_digest(f"{place} keys")] = f"{place} keys"
                row[field.name] = {_a_digest(f"{place} keys"): 1.0}
                if "float]" not in hint and "int]" not in hint:
                    fields[_a_digest(f"{place} values")] = f"{place} values"
                    row[field.name] = {_a_digest(f"{place} keys"): _a_digest(f"{place} values")}
            elif "Label" in hint or field.name in ruled:
                fields[_a_digest(place)] = place
                row[field.name] = _a_digest(place)
        if table != "prunings":
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()])
    return fields


def test_every_text_of_a_fact_is_found_by_local_views_and_by_parameters_of_queries() -> None:
    """A new field must be in both queries, or in the list above."""
    with duckdb.connect() as connection:
        create_tables(connection)
        fields = _rows_with_digests(connection)
        assert len(fields) > 100

        def missing(query: str, **parameters: Any) -> set[str]:
            found = {row[0] for row in connection.execute(bare_text(query), parameters).fetchall()}
            return {place for digest, place in fields.items() if digest not in found}

        assert missing("internal/label_texts", digests=[*fields], most=3) == NEVER_TEXTS
        assert missing("internal/stored_texts", texts=[*fields]) == NEVER_TEXTS

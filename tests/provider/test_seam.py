"""Only a few modules know the shape of a provider's API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")
MODULES_MAX = 13

KEYS = frozenset(
    {
        "anthropic-beta", "anthropic-version", "cache_control", "cache_creation", "cache_creation_input_tokens",
        "cache_read_input_tokens", "content_block", "content_block_delta", "content_block_start", "content_block_stop",
        "end_turn", "ephemeral_1h_input_tokens", "ephemeral_5m_input_tokens", "input_json_delta", "max_tokens",
        "message_delta", "message_start", "message_stop", "output_tokens_details", "partial_json",
        "previous_message_id", "redacted_thinking", "retry-after-ms", "server_tool_use", "signature_delta",
        "stop_sequence", "text_delta", "thinking_delta", "thinking_tokens", "tool_choice", "tool_use", "x-api-key",
        "x-should-retry",
    }
)  # fmt: skip
"""Strings of the Messages API, except those that are also columns or events of agentobs, such as `tool_use_id`."""
INSIDE = re.compile(
    r"/v1/(?:messages|complete)|rawPredict|vnd\.amazon\.eventstream|anthropic-(?:version|ratelimit)|\b(?:srv|mcp)?toolu\b"
    r'|"(?:tool_use|text_delta|input_json_delta|cache_control|messages|content_block_delta)"'
)
"""Matches such strings inside of longer strings and patterns."""
OWN = {
    "agentobs/effects/mcp/mcp_observer.py",
    "agentobs/records/event_catalog.py",
    "exporters/conventions/openinference_content.py",
}
"""Modules in which such a string has another meaning: a kind of event, the name of a number, a word of OpenInference,
the header of an MCP server.
"""
AGENT = "agentobs/agent/"
"""The agent loop, which creates its requests with the types of its SDK."""
CLIENTS = {"agentobs/cli/inspection/contradictions.py", "replay/playback/warmup.py"}
"""Modules that call the typed client of the SDK and do not know the shape otherwise: the judge and the warm-up."""
REQUESTS = frozenset({"batches", "count_tokens", "create", "parse", "stream", "tool_runner"})
"""The methods of `messages` in a client of the SDK."""
IMPORTERS = ("agentobs/importers/", "agentobs/cli/transfer/imports.py")
"""Importers of files that only contain requests to one provider."""
OF_THE_SDK = {"agentobs/ledger/meter.py", "replay/playback/warmup.py"}
"""Modules that are specific to the SDK of the agent loop: the meter of its usage and the warm-up of its client."""


def shapes_in(path: Path) -> Iterator[str]:
    """Yield the strings in a module, except docstrings, that belong to the shape of a provider's API."""
    source = path.read_text()
    if not (INSIDE.search(source) or any(key in source for key in KEYS)):
        return  # parsing takes longer than searching
    tree = ast.parse(source)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in prose:
            continue
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        if isinstance(value, str) and (value in KEYS or INSIDE.search(value)):
            yield value


def shapes_in_sql(path: Path) -> list[str]:
    """Return the quoted strings in a SQL file, outside of comments, that belong to the shape of a provider's API."""
    code = "\n".join(
        line
        for line in path.read_text().splitlines()
        if not line.lstrip().startswith(("--", "COMMENT ON"))
    )
    quoted = (each.replace("''", "'") for each in re.findall(r"'((?:[^']|'')*)'", code))
    return [each for each in quoted if each in KEYS or INSIDE.search(each)]


def requests_in(path: Path) -> Iterator[str]:
    """Yield the requests that a module sends with a client of the SDK."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if "messages" in source else ():
        match node:
            case ast.Attribute(value=ast.Attribute(attr="messages"), attr=name) if name in REQUESTS:
                yield name
            case _:
                pass


def sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(AGENT) and name not in OWN:
                yield name, path


@pytest.mark.slow
def test_few_modules_know_the_shape_of_a_provider() -> None:
    """Only the dialect and the readers of the provider's billing reports know the shape."""
    knowing = [name for name, path in sources() if any(shapes_in(path))]
    dialects = ("agentobs/provider/anthropic/", "agentobs/provider/bedrock/")
    outside = [name for name in knowing if not name.startswith(dialects)]
    assert outside == [
        "agentobs/collector/telemetry_events.py",  # the names of attributes in telemetry
        "agentobs/records/clear_text.py",  # the forms of IDs
        "agentobs/store/billing/provider_report.py",
        "agentobs/store/billing/report_pages.py",
    ]
    assert len(knowing) <= MODULES_MAX


def test_the_sql_of_the_store_knows_no_provider() -> None:
    """Views, queries and migrations use columns that the dialect sets. `tool_use` is also a kind of event."""
    files = sorted((ROOT / "agentobs" / "store").rglob("*.sql"))
    assert len(files) > 50
    found = {path.relative_to(ROOT).as_posix(): shapes_in_sql(path) for path in files}
    assert {name: shapes for name, shapes in found.items() if shapes} == {
        "agentobs/store/duckdb/views/50_events.sql": ["tool_use"]
    }


@pytest.mark.slow
def test_few_modules_send_requests_with_the_sdk() -> None:
    """In addition to the agent loop, only the listed modules send requests."""
    assert {name for name, path in sources() if any(requests_in(path))} == CLIENTS


def test_only_the_registry_names_a_dialect() -> None:
    """All other modules get the dialect from the registry."""
    imported = re.compile(r"^\s*(?:from|import) agentobs\.provider\.anthropic\b", re.MULTILINE)
    naming = [
        name
        for name, path in sources()
        if imported.search(path.read_text()) and not name.startswith("agentobs/provider/")
    ]
    assert naming == []


def test_few_modules_use_a_specific_dialect() -> None:
    """All other modules get the dialect of a request from the registry, or use values of all dialects."""
    named = re.compile(r"\bANTHROPIC\b(?!_)")
    naming = {
        name
        for name, path in sources()
        if named.search(path.read_text())
        and not name.startswith(("agentobs/provider/", *IMPORTERS))
    }
    assert naming == OF_THE_SDK


def test_the_scan_finds_shapes_and_requests(tmp_path: Path) -> None:
    """The scan finds keys, parts of patterns and bytes of the shape, and calls of the SDK; it ignores docstrings."""
    path = tmp_path / "module.py"
    path.write_text(
        '"""tool_use"""\nA = value["tool_use"]\nB = re.compile("x|/v1/messages")\nC = b"text_delta"\n'
        'D = client.messages.create()\nE = "tool_use_id"\n'
    )
    assert sorted(shapes_in(path)) == ["text_delta", "tool_use", "x|/v1/messages"]
    assert list(requests_in(path)) == ["create"]
    query = tmp_path / "query.sql"
    query.write_text(
        "-- 'tool_use'\nSELECT kind = 'tool_use', tool_use_id, 'it''s'\nWHERE endpoint = '/v1/messages';\n"
        "COMMENT ON COLUMN a.b IS 'text_delta';\n"
    )
    assert shapes_in_sql(query) == ["tool_use", "/v1/messages"]

"""The shape of a provider's API is known in a few modules only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")
MODULES_MAX = 8

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
"""Strings of the Messages API. Those that name columns and events of agentobs, too, such as `tool_use_id`, are not
among them."""
INSIDE = re.compile(
    r"/v1/(?:messages|complete)|rawPredict|vnd\.amazon\.eventstream|anthropic-(?:version|ratelimit)|\b(?:srv|mcp)?toolu\b"
    r'|"(?:tool_use|text_delta|input_json_delta|cache_control|messages|content_block_delta)"'
)
"""Parts of longer strings and patterns."""
OWN = {"agentobs/records/event_catalog.py"}
"""Modules in which such a string is a word of agentobs: the kinds of events and the names of their numbers."""
AGENT = "agentobs/agent/"
"""The agent loop builds its requests with the types of its SDK."""
CLIENTS = {"agentobs/cli/inspection/contradictions.py", "replay/isolation/warmup.py"}
"""Modules that call the typed client of the SDK themselves: the judge, and the warm-up. They know no shape else."""
REQUESTS = frozenset({"batches", "count_tokens", "create", "parse", "stream", "tool_runner"})
"""What a client of the SDK has below `messages`."""
IMPORTERS = ("agentobs/importers/", "agentobs/cli/transfer/imports.py")
"""Readers of files that hold nothing but requests to one provider."""
OF_THE_SDK = {"agentobs/ledger/meter.py", "replay/isolation/warmup.py"}
"""Modules that work for the SDK of the agent loop: the meter of its usage, and the warm-up of its client."""


def shapes_in(path: Path) -> Iterator[str]:
    """Yield the strings of a module, except its docstrings, that belong to the shape."""
    tree = ast.parse(path.read_text())
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


def requests_in(path: Path) -> Iterator[str]:
    """Yield the requests that a module makes with a client of the SDK."""
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_few_modules_know_the_shape_of_a_provider() -> None:
    """They are those of the dialect, and the readers of the provider's billing reports."""
    knowing = [name for name, path in sources() if any(shapes_in(path))]
    outside = [name for name in knowing if not name.startswith("agentobs/provider/anthropic/")]
    assert outside == [
        "agentobs/store/billing/provider_report.py",
        "agentobs/store/billing/report_pages.py",
    ]
    assert len(knowing) <= MODULES_MAX


def test_few_modules_make_requests_with_the_sdk() -> None:
    """Besides the agent loop, nothing but the modules named here."""
    assert {name for name, path in sources() if any(requests_in(path))} == CLIENTS


def test_only_the_registry_names_a_dialect() -> None:
    """All other modules get it from there."""
    imported = re.compile(r"^\s*(?:from|import) agentobs\.provider\.anthropic\b", re.MULTILINE)
    naming = [
        name
        for name, path in sources()
        if imported.search(path.read_text()) and not name.startswith("agentobs/provider/")
    ]
    assert naming == []


def test_only_what_belongs_to_one_provider_asks_for_its_dialect() -> None:
    """All other modules ask the registry for the dialect of a request, or for the values of all dialects."""
    named = re.compile(r"\bANTHROPIC\b(?!_)")
    naming = {
        name
        for name, path in sources()
        if named.search(path.read_text())
        and not name.startswith(("agentobs/provider/", *IMPORTERS))
    }
    assert naming == OF_THE_SDK


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A key, a part of a pattern, and bytes are the shape, a call of the SDK is a request; docstrings are neither."""
    path = tmp_path / "module.py"
    path.write_text(
        '"""tool_use"""\nA = value["tool_use"]\nB = re.compile("x|/v1/messages")\nC = b"text_delta"\n'
        'D = client.messages.create()\nE = "tool_use_id"\n'
    )
    assert sorted(shapes_in(path)) == ["text_delta", "tool_use", "x|/v1/messages"]
    assert list(requests_in(path)) == ["create"]

"""The content of observed commands and MCP calls, for `agentobs show --content`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentobs.errors import AgentobsError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.recording.journal.home import Home

LINES_MAX = 20
"""The maximum number of lines of each stream or message that are shown. Our choice."""


def effect_lines(
    home: Home, session_id: str, effects: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the lines that show the content of effects.

    Args:
        home: the home of the session.
        session_id: the session.
        effects: the rows of `internal/effect_contents`.
    """
    from agentobs.recording.vault.vault import Vault, text_bytes

    vaults: dict[str, Vault] = {}
    for effect in effects:
        segment_id = effect["segment_id"]
        yield ""
        try:
            if segment_id not in vaults:
                vaults[segment_id] = Vault(home, segment_id, session_id)
            content = json.loads(text_bytes(vaults[segment_id].value(effect["content"])))
        except (AgentobsError, OSError, ValueError) as error:
            yield printable(f"{effect['kind']} {effect['name']}: {error}")
            continue
        is_command = effect["kind"] == "command"
        yield from _command(effect, content) if is_command else _mcp_call(effect, content)


def _command(effect: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    first, *others = _bounded(shlex.join(content.get("argv", [])).splitlines()) or [""]
    yield printable(f"$ {first}")
    yield from (printable(f"  {line}") for line in others)
    yield printable(f"  in {content.get('directory', '')}: {effect['outcome']}")
    for name in ("stdout", "stderr"):
        stream = content.get(name) or {}
        text = stream.get("text")
        if text is None and stream:
            cut = f"({stream['bytes']:,} bytes, cut)"
            text = "\n".join((stream.get("start", ""), cut, stream.get("end", "")))
        yield from _indented(name, text or "")


def _mcp_call(effect: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    yield printable(f"MCP {effect['name']}: {effect['outcome']}")
    for name in ("request", "response"):
        if name in content:
            value = content[name]
            key = "params" if name == "request" else "result" if "result" in value else "error"
            shown = value.get(key, value)
            yield from _indented(name, json.dumps(shown, ensure_ascii=False))


def _indented(name: str, text: str) -> Iterator[str]:
    """Yield the lines of a text after the name of its part, without the middle of a long text."""
    for line in _bounded(text.splitlines()):
        yield printable(f"  {name}  {line}")


def _bounded(lines: list[str]) -> list[str]:
    if len(lines) <= LINES_MAX:
        return lines
    half = LINES_MAX // 2
    return [*lines[:half], f"... {len(lines) - 2 * half:,} lines", *lines[-half:]]


__all__ = ["effect_lines"]

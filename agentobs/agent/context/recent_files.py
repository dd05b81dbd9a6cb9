"""The files that the agent has read most recently, which are attached again after a summary.

Their contents come from tool results in the conversation. Nothing is read again, so a replay attaches the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentobs.agent.context.reduction import is_trimmed
from agentobs.agent.context.token_counts import BYTES_PER_TOKEN, text_tokens
from agentobs.agent.tools.tool import Tool, find_tool
from agentobs.provider.anthropic.messages import tool_results, tool_uses
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json

FILES_MAX = 5
"""Maximum number of files that are attached again."""
FILE_TOKENS_MAX = 5_000
"""Maximum tokens of one file; a longer file is truncated at the end."""
FILES_TOKENS_MAX = 50_000
"""Maximum tokens of all files, including their paths. Five files have at most 25,000, so this limit only
matters for long paths.
"""


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was last read."""

    path: str
    text: str
    is_stale: bool
    """Whether the file was edited after it was read."""


@dataclass(frozen=True, slots=True)
class _Call:
    path: str
    reads: bool
    result: Json | None


def recent_files(
    removed: Sequence[Json], kept: Sequence[Json], tools: Sequence[Tool]
) -> list[File]:
    """Return the files that were last read or edited in the removed messages, latest first.

    Files that the kept messages read, and files that were never read, are left out.
    """
    kept_paths = {call.path for call in _calls(kept, tools) if call.reads and _content(call)}
    found: dict[str, File] = {}
    order: dict[str, None] = {}
    for call in _calls(removed, tools):
        order.pop(call.path, None)
        order[call.path] = None
        text = _content(call)
        if call.reads and text:
            found[call.path] = File(call.path, text, False)
        elif not call.reads and call.path in found:
            found[call.path] = File(call.path, found[call.path].text, True)
    edited = {call.path for call in _calls(kept, tools) if not call.reads}
    latest = [found[path] for path in reversed(order) if path in found and path not in kept_paths]
    return [
        File(file.path, file.text, file.is_stale or file.path in edited)
        for file in latest[:FILES_MAX]
    ]


def attachments(files: Sequence[File], tokens: int) -> list[Json]:
    """Return blocks with the texts of files, up to `tokens` tokens in total; long texts are truncated."""
    result: list[Json] = []
    available = min(tokens, FILES_TOKENS_MAX)
    for file in files:
        block = {"type": "text", "text": _file_text(file)}
        available -= text_tokens(block["text"])
        if available < 0:
            break
        result.append(block)
    return result


def _file_text(file: File) -> str:
    bytes_max = int(FILE_TOKENS_MAX * BYTES_PER_TOKEN)
    shown = file.text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore")
    notes = []
    if len(shown) < len(file.text):
        notes.append("only the beginning")
    if file.is_stale:
        notes.append("it has been edited since, so read it again before you rely on it")
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"The file {file.path}, as it was last read{note}:\n\n{shown}"


def _content(call: _Call) -> str:
    """Return the text in the result of a call; empty if the call failed or the result was trimmed."""
    result = call.result
    if result is None or result.get("is_error") or is_trimmed(result.get("content")):
        return ""
    return text_of(result.get("content"))


def _calls(messages: Sequence[Json], tools: Sequence[Tool]) -> Iterator[_Call]:
    """Yield the calls that read or edit one file, in order."""
    results = {
        block.get("tool_use_id"): block for message in messages for block in tool_results(message)
    }
    for message in messages:
        for block in tool_uses(message):
            tool = find_tool(tools, str(block.get("name")))
            if tool is None or tool.tool_class not in ("read", "edit"):
                continue
            paths = _paths(tool, block.get("input"))
            if len(paths) == 1:
                yield _Call(paths[0], tool.tool_class == "read", results.get(block.get("id")))


def _paths(tool: Tool, value: object) -> list[str]:
    values = [value.get(name) for name in tool.paths] if isinstance(value, dict) else []
    return [path for path in values if isinstance(path, str) and path]

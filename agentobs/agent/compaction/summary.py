"""Build the LLM request for a summary, and the conversation that continues from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentobs.agent.context.message_groups import Group, flattened, merged, split_groups
from agentobs.agent.context.reduction import without_oldest
from agentobs.agent.context.token_counts import estimate
from agentobs.agent.model.thinking import without_thinking
from agentobs.agent.state import AgentOptions, State, request_arguments
from agentobs.agent.tools.tool import Tool
from agentobs.provider.anthropic.messages import tool_uses
from agentobs.records.canonical_json import Json

KEPT_SHARE = 0.2
"""The latest part of a conversation stays unchanged: about this share of it, and at least one group. Our choice."""

DROPS_MAX = 3
"""Maximum number of times that the oldest groups are dropped because the request for a summary is too long."""

SUMMARY_PROMPT = """\
Stop here. This conversation is too long and will continue from a summary. Anything that is not in it is lost.

Write this summary now, for yourself. Do not call any tools. Use these headings:

1. Task: what the user wants, in the user's own words if they matter, including corrections and preferences.
2. Done: what has been done so far and the results, with the names of files, functions, commands and values.
3. Found: facts, decisions and their reasons; errors, and how they were fixed.
4. Left: what remains to be done, and what you were about to do when this interrupted you.

Be exact and complete, and no longer than necessary."""

SHORTER_SUMMARY_PROMPT = (
    "Your last summary was cut off at its limit and was lost. "
    "Write a summary of at most {words:,} words."
)
"""Added to the prompt after a summary was cut. `words` is half of the token limit; a word has about 1.3 tokens, so such
a summary takes about two thirds of the limit.
"""

SUMMARY_MESSAGE = """\
This conversation continues an earlier part that became too long. This is your summary of that part:

{summary}

The most recent messages, if any, follow unchanged. Continue from there; do not ask what to do, and do not mention \
this summary."""

_KEPT_FIELDS = (
    "container",
    "inference_geo",
    "mcp_servers",
    "metadata",
    "service_tier",
    "speed",
    "system",
    "tools",
)
"""Fields of `AgentOptions.extra` that a summary request keeps. The other fields change the form of the response
or its thinking, but a summary must be plain text.
"""


def split(messages: Sequence[Json], tokens: int) -> tuple[Group, Group]:
    """Split messages into the part to summarize and the part to keep.

    The part to keep has about `tokens` tokens, and at least one group. The part to summarize is
    empty if there is only a prompt.
    """
    grouped = split_groups(messages)
    if not grouped.groups:
        return (), tuple(messages)
    kept_groups, available = 1, tokens - estimate(grouped.groups[-1])
    for group in reversed(grouped.groups[:-1]):
        available -= estimate(group)
        if available < 0:
            break
        kept_groups += 1
    at = len(grouped.groups) - kept_groups
    return (*grouped.start, *flattened(grouped.groups[:at])), flattened(grouped.groups[at:])


def summary_request(
    messages: Sequence[Json],
    state: State,
    options: AgentOptions,
    tools: Sequence[Tool],
    output_declaration: Json | None,
    instructions: str | None = None,
) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` that request a summary of these messages.

    The request has the agent's system prompt and tools, but forbids tool calls, because a call instead of a summary
    would make the request useless. Forbidding calls and changing the messages invalidates the provider's cache of the
    messages.
    """
    prompt = "\n\n".join(filter(None, (SUMMARY_PROMPT, options.context.instructions, instructions)))
    converted = plain_messages(messages)
    question = {"role": "user", "content": [_text(prompt)]}
    summary_options = replace(
        options,
        max_tokens=options.context.summary_tokens,
        cache=None,
        thinking=None,
        extra={name: options.extra[name] for name in _KEPT_FIELDS if name in options.extra},
    )
    summary_state = replace(state, messages=merged((*converted, question)))
    arguments = request_arguments(summary_state, summary_options, tools, output_declaration)
    extra = arguments.get("extra_body", {})
    if "tools" not in arguments and "tools" not in extra:
        declarations = _called_tool_declarations(converted)
        if declarations:
            arguments["tools"] = declarations
    if "tools" in arguments or "tools" in extra:
        arguments["tool_choice"] = {"type": "none"}
    return arguments


def with_fewer_groups(messages: Sequence[Json], excess: int | None) -> Group | None:
    """Return messages without their oldest groups; None if there are no groups.

    Drops at least one group: enough groups to remove `excess` tokens, or a third of the groups if the excess is
    unknown.
    """
    groups = split_groups(messages).groups
    if not groups:
        return None
    count = max(len(groups) // 3, 1)
    if excess is not None:
        freed, count = 0, 0
        while freed < excess and count < len(groups):
            freed += estimate(groups[count])
            count += 1
    return without_oldest(messages, max(count, 1))


_TOO_LONG_ERROR = re.compile(r"(\d[\d,]*) tokens > (\d[\d,]*) maximum")


def reported_sizes(text: str) -> tuple[int, int] | None:
    """Return the actual and the maximum tokens of a prompt if the provider's error message contains them, or else None.

    Example: `prompt is too long: 210000 tokens > 200000 maximum` (from a real 400 response).
    """
    found = _TOO_LONG_ERROR.search(text)
    if found is None:
        return None
    tokens, tokens_max = (int(number.replace(",", "")) for number in found.groups())
    return tokens, tokens_max


def continued_from(summary: str, files: Sequence[Json], kept: Sequence[Json]) -> Group:
    """Return the conversation that continues from a summary, with attached files and the kept messages."""
    boundary = {"type": "text", "text": SUMMARY_MESSAGE.format(summary=summary)}
    return merged(({"role": "user", "content": [boundary, *files]}, *kept))


def plain_messages(messages: Sequence[Json]) -> Group:
    """Return messages without thinking, and with short texts instead of images and documents."""
    result = []
    for message in without_thinking(messages):
        content = message.get("content")
        if isinstance(content, list):
            content = [
                _plain_block(block) if isinstance(block, dict) else block for block in content
            ]
        result.append({**message, "content": content})
    return tuple(result)


def _plain_block(block: Json) -> Json:
    match block:
        case {"type": "image" | "document" | "container_upload" as kind}:
            return _text(f"[{kind}{_file_description(block)}]")
        case {"type": "tool_result", "content": list() as inner}:
            return {
                **block,
                "content": [_plain_block(b) if isinstance(b, dict) else b for b in inner],
            }
        case {"type": "compaction"}:
            content = block.get("content")
            return _text(
                content if isinstance(content, str) and content else "[an unreadable summary]"
            )
        case {"type": "text", "citations": _}:
            return {name: value for name, value in block.items() if name != "citations"}
        case {
            "type": "web_fetch_tool_result",
            "content": {"content": {"type": "document"} as page},
        }:
            text_source = {
                "type": "text",
                "media_type": "text/plain",
                "data": f"[document{_file_description(page)}]",
            }
            return {
                **block,
                "content": {
                    **block["content"],
                    "content": {"type": "document", "source": text_source},
                },
            }
        case _:
            return block


def _file_description(block: Json) -> str:
    """Return the title and the type of an image or a document, if they are known."""
    source = block.get("source")
    kind = source.get("media_type") if isinstance(source, dict) else None
    known = [each for each in (block.get("title"), kind) if isinstance(each, str)]
    return f": {', '.join(known)}" if known else ""


def _called_tool_declarations(messages: Sequence[Json]) -> list[Json]:
    """Return minimal declarations of all called tools.

    The provider requires declarations if the messages contain calls, even if the agent no longer has tools.
    """
    names = dict.fromkeys(b["name"] for message in messages for b in tool_uses(message))
    schema = {"type": "object"}
    return [{"name": name, "input_schema": schema} for name in names]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}

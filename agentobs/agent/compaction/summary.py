"""Build the LLM request for a summary, and the conversation that continues from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentobs.agent.context.message_groups import Group, flat, joined, parts
from agentobs.agent.context.reduction import without_oldest
from agentobs.agent.context.token_counts import estimate
from agentobs.agent.model.thinking import without_thinking
from agentobs.agent.state import Options, State
from agentobs.agent.state import request as own_request
from agentobs.agent.tools.tool import Tool
from agentobs.provider.anthropic.messages import tool_uses
from agentobs.records.canonical_json import Json

KEPT_SHARE = 0.2
"""Approximate share of a conversation that stays unchanged, its latest part; at least one group. Our choice.
"""

DROPS_MAX = 3
"""How many times the oldest groups are dropped if the request for a summary is itself too long."""

ASKED = """\
Stop here. This conversation has got too long and will go on from a summary: what it does not say is lost.

Write that summary now, for yourself. Call no tool. Say, under headings of these names:

1. Task: what the user wants, in the user's own words where they matter, corrections and preferences included.
2. Done: what was done so far and what came of it, with the names of files, functions, commands and values.
3. Found: facts, decisions and their reasons; errors, and how they were mended.
4. Left: what remains to be done, and what you were about to do when this interrupted you.

Be exact and complete, and no longer than that needs."""

SHORTER = "Your last summary did not end within its limit and was lost. Write one of at most {words:,} words."
"""Added after a summary was cut. A word has about 1.3 tokens, so this takes two thirds of the limit.
"""

BOUNDARY = """\
This conversation goes on from an earlier part that got too long. This is its summary, written by you:

{summary}

What was said last follows as it was said, if anything does. Go on from there without asking what to do, and \
without speaking of this summary."""

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
"""Fields of `Options.extra` that a summary request keeps. The others shape a response or its
thinking, but a summary must be plain text.
"""


def split(messages: Sequence[Json], tokens: int) -> tuple[Group, Group]:
    """Return the part to summarize and the part to keep: about `tokens` tokens, at least one group.

    The first part is empty if there is only a prompt.
    """
    whole = parts(messages)
    if not whole.groups:
        return (), tuple(messages)
    kept_groups, room = 1, tokens - estimate(whole.groups[-1])
    for group in reversed(whole.groups[:-1]):
        room -= estimate(group)
        if room < 0:
            break
        kept_groups += 1
    at = len(whole.groups) - kept_groups
    return (*whole.head, *flat(whole.groups[:at])), flat(whole.groups[at:])


def request(
    gone: Sequence[Json],
    state: State,
    options: Options,
    tools: Sequence[Tool],
    owed: Json | None,
    instructions: str | None = None,
) -> dict[str, Any]:
    """Return the arguments of the SDK's `messages.create` that request a summary of these messages.

    System prompt and tools are the agent's, but no tool call is allowed, because a call instead of a summary would
    waste the whole request. This and the changes to the messages invalidate the provider's cache of the messages.
    """
    prompt = "\n\n".join(filter(None, (ASKED, options.context.instructions, instructions)))
    plain_messages = plain(gone)
    question = {"role": "user", "content": [_text(prompt)]}
    shaped = replace(
        options,
        max_tokens=options.context.summary_tokens,
        cache=None,
        thinking=None,
        extra={name: options.extra[name] for name in _KEPT_FIELDS if name in options.extra},
    )
    arguments = own_request(
        replace(state, messages=joined((*plain_messages, question))), shaped, tools, owed
    )
    extra = arguments.get("extra_body", {})
    if "tools" not in arguments and "tools" not in extra and (called := _declared(plain_messages)):
        arguments["tools"] = called
    if "tools" in arguments or "tools" in extra:
        arguments["tool_choice"] = {"type": "none"}
    return arguments


def shorter(messages: Sequence[Json], excess: int | None) -> Group | None:
    """Return messages without their oldest groups: at least `excess` tokens, or a third of the
    groups.

    Removes at least one group; None if there is none.
    """
    groups = parts(messages).groups
    if not groups:
        return None
    count = max(len(groups) // 3, 1)
    if excess is not None:
        freed, count = 0, 0
        while freed < excess and count < len(groups):
            freed += estimate(groups[count])
            count += 1
    return without_oldest(messages, max(count, 1))


_TOLD = re.compile(r"(\d[\d,]*) tokens > (\d[\d,]*) maximum")


def reported_sizes(text: str) -> tuple[int, int] | None:
    """Return the actual and the maximum tokens of a prompt, if the provider's refusal contains them.

    Example: `prompt is too long: 210000 tokens > 200000 maximum` (a recorded 400).
    """
    found = _TOLD.search(text)
    if found is None:
        return None
    tokens, most = (int(number.replace(",", "")) for number in found.groups())
    return tokens, most


def continued_from(summary: str, files: Sequence[Json], rest: Sequence[Json]) -> Group:
    """Return the conversation that continues from a summary."""
    boundary = {"type": "text", "text": BOUNDARY.format(summary=summary)}
    return joined(({"role": "user", "content": [boundary, *files]}, *rest))


def plain(messages: Sequence[Json]) -> Group:
    """Return messages for a summary: without thinking, and with text in place of images and
    documents.
    """
    result = []
    for message in without_thinking(messages):
        content = message.get("content")
        if isinstance(content, list):
            content = [_plain(block) if isinstance(block, dict) else block for block in content]
        result.append({**message, "content": content})
    return tuple(result)


def _plain(block: Json) -> Json:
    match block:
        case {"type": "image" | "document" | "container_upload" as kind}:
            return _text(f"[{kind}{_of(block)}]")
        case {"type": "tool_result", "content": list() as inner}:
            return {**block, "content": [_plain(b) if isinstance(b, dict) else b for b in inner]}
        case {"type": "compaction"}:
            content = block.get("content")
            return _text(
                content if isinstance(content, str) and content else "[a summary, not readable]"
            )
        case {"type": "text", "citations": _}:
            return {name: value for name, value in block.items() if name != "citations"}
        case {
            "type": "web_fetch_tool_result",
            "content": {"content": {"type": "document"} as page},
        }:
            words = {"type": "text", "media_type": "text/plain", "data": f"[document{_of(page)}]"}
            return {
                **block,
                "content": {**block["content"], "content": {"type": "document", "source": words}},
            }
        case _:
            return block


def _of(block: Json) -> str:
    """Return the title and type of an image or a document, if known."""
    source = block.get("source")
    kind = source.get("media_type") if isinstance(source, dict) else None
    known = [each for each in (block.get("title"), kind) if isinstance(each, str)]
    return f": {', '.join(known)}" if known else ""


def _declared(messages: Sequence[Json]) -> list[Json]:
    """Return declarations of called tools that no longer exist, because the provider requires some."""
    names = dict.fromkeys(b["name"] for message in messages for b in tool_uses(message))
    schema = {"type": "object"}
    return [{"name": name, "input_schema": schema} for name in names]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}

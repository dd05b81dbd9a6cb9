"""Content of spans: the content of one exchange, as the JSON texts that telemetry products read, limited in size.

Only sessions that opted in have content. If it is too long, it is cut and the removed amount is reported. Long texts
are cut in the middle. The earliest messages are dropped, because each request repeats all messages. Secrets are already
redacted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Message, Turn
from agentobs.provider.registry import dialect_of_body, turns
from agentobs.records.backend import ExchangeContent

PART_CHARACTERS = 16 * 1024
"""The maximum length of one text of a message. Our choice."""
WHOLE_CHARACTERS = 64 * 1024
"""The maximum length of one attribute. Our choice: four attributes fit into a gRPC message, which may have 4 MiB."""


@dataclass(slots=True)
class Content:
    """The texts of one exchange."""

    texts: dict[str, str] = field(default_factory=dict)
    """JSON by part: `input`, `output`, `system`, `tools`."""
    cut_characters: int = 0
    """The number of characters that were removed."""
    cut_messages: int = 0
    """The number of messages that were removed, starting with the earliest message."""
    is_unreadable: bool = False
    """Whether a part is missing because it could not be read."""


def content_of_request(exchange: ExchangeContent) -> Content:
    """Return the input and the output of a model call."""
    content = Content()
    request = parsed(exchange.question)
    if isinstance(request, dict):
        dialect = dialect_of_body(request)
        _put_messages(content, [each for turn in turns(request) for each in split_results(turn)])
        if system := dialect.system(request):
            put(content, "system", [_part(block, content) for block in system.blocks])
        if isinstance(tools := request.get(dialect.prompt_keys.get("tools", "")), list):
            put(content, "tools", [_tool(each, content, dialect) for each in tools])
    elif exchange.question:
        content.is_unreadable = True
    message = answer_of(exchange.answer, dialect_of_body(request))
    if message.raw:
        parts = [_part(block, content) for block in message.blocks]
        reason = message.stop_reason
        put(
            content,
            "output",
            [{"role": "assistant", "parts": parts, "finish_reason": reason or "error"}],
        )
    elif exchange.answer:
        content.is_unreadable = True
    return content


def content_of_call(exchange: ExchangeContent) -> Content:
    """Return the input and the output of a tool call."""
    content = Content()
    for part, raw in (("input", exchange.question), ("output", exchange.answer)):
        value = parsed(raw)
        if value is None and raw.strip() != b"null":
            content.is_unreadable = True
        else:
            put(content, part, shortened(value, content))
    return content


def error_message(exchange: ExchangeContent) -> str | None:
    """Return the error message in a response, shortened if it is long; None if it contains no error."""
    error = answer_of(exchange.answer, dialect_of_body(parsed(exchange.question))).raw.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(shortened(message, Content())) if isinstance(message, str) else None


def split_results(turn: Turn) -> list[Turn]:
    """Return the messages of a turn in the form of the conventions: one with the role `tool` for each tool result.

    Providers send tool results in messages of the user. The rest of such a message follows the results.
    """
    if not turn.results:
        return [turn]
    rest = tuple(block for block in turn.blocks if block.kind != "result")
    results = [Turn("other", (block,), {"role": "tool"}) for block in turn.results]
    return [*results, *([Turn(turn.role, rest, {"role": turn.raw.get("role")})] if rest else [])]


def _put_messages(content: Content, messages: list[Turn]) -> None:
    """Add the latest messages that fit, in their order."""
    kept: list[dict[str, Any]] = []
    remaining = WHOLE_CHARACTERS
    for turn in reversed(messages):
        parts = [_part(block, content) for block in turn.blocks]
        entry = {"role": str(turn.raw.get("role")), "parts": parts}
        size = len(json_text(entry))
        if size > remaining and kept:
            break
        kept.append(entry)
        remaining -= size
    content.cut_messages = len(messages) - len(kept)
    put(content, "input", kept[::-1])


def put(content: Content, part: str, value: Any) -> None:
    """Set a part to a value as JSON; of a value that is too long, only the beginning is kept."""
    text = json_text(value)
    if len(text) > WHOLE_CHARACTERS:
        content.cut_characters += len(text) - WHOLE_CHARACTERS
        # Keep only half: escaping may double the length of the nested text.
        text = json_text({"cut": True, "begins": text[: WHOLE_CHARACTERS // 2]})
    content.texts[part] = text


def _part(block: Block, content: Content) -> dict[str, Any]:
    """Return a block in the form of the conventions; of an unknown block, only its type and size."""
    match block.kind:
        case "text":
            return {"type": "text", "content": shortened(block.text, content)}
        case "reasoning" if block.text:
            return {"type": "reasoning", "content": shortened(block.text, content)}
        case "call" | "provider_call":
            names = {"id": block.id, "name": block.name}
            return {"type": "tool_call", **names, "arguments": shortened(block.value, content)}
        case "result":
            response = shortened(block.value, content)
            return {"type": "tool_call_response", "id": block.id, "response": response}
        case _:
            content.cut_characters += (size := len(json_text(block.raw)))
            return {"type": block.type, "characters": size}


def _tool(tool: Any, content: Content, dialect: Dialect) -> Any:
    definition = dialect.tool_definition(tool)
    if definition is None:
        return shortened(tool, content)
    name, description, schema = definition
    names = {"type": "function", "name": name, "description": description}
    return shortened({**names, "parameters": schema}, content)


def shortened(value: Any, content: Content) -> Any:
    """Shorten a long text in its middle, or a long list or object in the middle of its JSON text."""
    if isinstance(value, str) and len(value) > PART_CHARACTERS:
        return _without_middle(value, content)
    if isinstance(value, dict | list) and len(text := json_text(value)) > PART_CHARACTERS:
        return _without_middle(text, content)
    return value


def _without_middle(text: str, content: Content) -> str:
    kept = PART_CHARACTERS // 2
    left_out = len(text) - 2 * kept
    content.cut_characters += left_out
    return f"{text[:kept]} [... {left_out} characters cut ...] {text[-kept:]}"


def answer_of(body: bytes, dialect: Dialect) -> Message:
    """Return the message in a response body, whose headers are unknown."""
    return dialect.message({}, body)


def parsed(raw: bytes) -> Any:
    """Return JSON as a value; None if it is not JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def json_text(value: Any) -> str:
    """Return a value as JSON with lone surrogates escaped, because some receivers reject them."""
    return (
        json.dumps(value, ensure_ascii=False, default=str)
        .encode("utf-8", "backslashreplace")
        .decode()
    )

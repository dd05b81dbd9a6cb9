"""OpenInference: the content of spans, with the names and forms of `openinference-instrumentation-anthropic` 3.1.0.

`input.value` and `output.value` of a model call are the JSON of the request and of the response. Each part of a message
is a separate attribute. Only the latest messages that fit into `MESSAGE_ATTRIBUTES_MAX` and `MESSAGE_CHARACTERS_MAX`
become attributes, so that a long conversation neither pushes IDs out of a span nor exceeds the size of a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Message, Turn
from agentobs.provider.registry import dialect_of_body, history, turns
from agentobs.records.backend import ExchangeContent
from exporters.conventions.agentobs_attributes import Attributes, Value, truncation_attributes
from exporters.conventions.span_content import (
    WHOLE_CHARACTERS,
    Content,
    answer_of,
    content_of_call,
    json_text,
    parsed,
    put,
    shortened,
    split_results,
)

MESSAGE_ATTRIBUTES_MAX = 384
"""The maximum number of attributes for messages and tools. Our choice: three quarters of the attributes of a span."""
MESSAGE_CHARACTERS_MAX = 2 * WHOLE_CHARACTERS
"""The maximum length of these attributes together. Our choice: as much as `input.value` and `output.value`."""
PARTS_MAX = 64
"""The maximum number of parts per message. Our choice."""
TOOLS_MAX = 64
"""The maximum number of tool definitions. Our choice."""

Pairs = Iterator[tuple[str, Value]]


def attributes_of_request(exchange: ExchangeContent) -> Attributes:
    """Return the input, the output, the messages, the tools and the details of a request."""
    content = Content()
    request, dialect = _request_of(exchange, content)
    response = _response_of(exchange, dialect, content)
    conversation = turns(request)
    flat = dict(_request_attributes(request, conversation, dialect, response, content))
    if conversation:
        parameters = _parameters(request, dialect)
        flat["llm.invocation_parameters"] = json_text(shortened(parameters, content))
    if details := dialect.response_details(conversation, response):
        flat["metadata"] = json_text(shortened(details, content))
    if request:
        _put_request(content, request, dialect)
    if response.raw:
        put(content, "output", response.raw)
    return {**flat, **dict(_values(content)), **truncation_attributes(content)}


def attributes_of_call(exchange: ExchangeContent) -> Attributes:
    """Return the input and the output of a tool call: as JSON, or as text if the output is a text."""
    content = content_of_call(exchange)
    found = dict(_values(content))
    if isinstance(text := parsed(exchange.answer), str):
        output = {"output.value": shortened(text, Content()), "output.mime_type": "text/plain"}
        found |= output
    return {**found, **truncation_attributes(content)}


def attributes_of_agent(exchange: ExchangeContent) -> Attributes:
    """Return the prompt and the last response of an agent: as text if they are texts only, otherwise as JSON."""
    content = Content()
    request, dialect = _request_of(exchange, content)
    response = _response_of(exchange, dialect, content)
    found: Attributes = {}
    for part, messages in (("input", turns(request)), ("output", [response])):
        blocks = [block for message in messages for block in message.blocks]
        if not blocks:
            continue
        if all(block.kind in ("text", "reasoning") for block in blocks):
            text = "\n".join(message.text for message in messages)
            found[f"{part}.value"] = shortened(text, content)
            found[f"{part}.mime_type"] = "text/plain"
        else:
            put(content, part, [message.raw for message in messages])
    return {**found, **dict(_values(content)), **truncation_attributes(content)}


def _request_of(exchange: ExchangeContent, content: Content) -> tuple[dict[str, Any], Dialect]:
    """Return the body of a request and its dialect; an empty body if it cannot be read."""
    request = parsed(exchange.question)
    content.is_unreadable = bool(exchange.question) and not isinstance(request, dict)
    return request if isinstance(request, dict) else {}, dialect_of_body(request)


def _response_of(exchange: ExchangeContent, dialect: Dialect, content: Content) -> Message:
    response = answer_of(exchange.answer, dialect)
    content.is_unreadable |= bool(exchange.answer) and not response.raw
    return response


def _parameters(request: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return the parameters of a request: everything but the model, the prompt and the tools."""
    others = {"model", dialect.history_key, *dialect.prompt_keys.values()}
    return {name: value for name, value in request.items() if name not in others}


def _put_request(content: Content, request: Mapping[str, Any], dialect: Dialect) -> None:
    """Set the input to a request with the latest messages that fit."""
    messages = history(request)
    remaining = WHOLE_CHARACTERS - len(json_text({**request, dialect.history_key: []}))
    kept = 0
    for message in reversed(messages):
        remaining -= len(json_text(message)) + 2
        if remaining < 0 and kept:
            break
        kept += 1
    content.cut_messages = max(content.cut_messages, len(messages) - kept)
    if kept < len(messages):
        request = {**request, dialect.history_key: messages[len(messages) - kept :]}
    put(content, "input", request)


def _values(content: Content) -> Pairs:
    for part in ("input", "output"):
        if part in content.texts:
            yield f"{part}.value", content.texts[part]
            yield f"{part}.mime_type", "application/json"


def _request_attributes(
    request: Mapping[str, Any],
    conversation: Sequence[Turn],
    dialect: Dialect,
    response: Message,
    content: Content,
) -> Pairs:
    """Yield an attribute for each part of the messages and for each tool, up to the size limit.

    The response, the tools and the system prompt come first; of the conversation, the latest messages are kept.
    """
    budget = _Budget()
    last = list(
        budget.fitting(_message("llm.output_messages.0.message", response, content), content)
        if response.blocks
        else ()
    )
    tools = request.get(dialect.prompt_keys.get("tools", ""))
    for number, tool in enumerate(tools[:TOOLS_MAX] if isinstance(tools, list) else ()):
        text = json_text(shortened(tool, content))
        last += budget.fitting([(f"llm.tools.{number}.tool.json_schema", text)], content)
    kept: list[list[tuple[str, Value]]] = []
    if (system := dialect.system(request)) is not None:
        kept.append(list(budget.fitting(_message("", system, content), content)))
    kept += _latest(conversation, budget, content)
    for number, pairs in enumerate(kept):
        for name, value in pairs:
            yield f"llm.input_messages.{number}.message{name}", value
    yield from last


def _latest(
    conversation: Sequence[Turn], budget: _Budget, content: Content
) -> list[list[tuple[str, Value]]]:
    """Return the attributes of the latest messages that fit, in their order, and at least a part of the last one."""
    messages = [each for turn in conversation for each in split_results(turn)]
    kept: list[list[tuple[str, Value]]] = []
    for message in reversed(messages):
        pairs = list(_message("", message, content))
        if not budget.take(pairs):
            if not kept:
                kept.append(list(budget.fitting(pairs, content)))
            break
        kept.append(pairs)
    content.cut_messages = len(messages) - len(kept)
    return kept[::-1]


@dataclass(slots=True)
class _Budget:
    """The attributes and characters that are left for the messages and tools of one span."""

    attributes: int = MESSAGE_ATTRIBUTES_MAX
    characters: int = MESSAGE_CHARACTERS_MAX

    def take(self, pairs: Sequence[tuple[str, Value]]) -> bool:
        """Use up the budget for some attributes; return False, and use up nothing, if it is too small."""
        characters = self.characters - sum(len(str(value)) for _, value in pairs)
        attributes = self.attributes - len(pairs)
        if min(characters, attributes) < 0:
            return False
        self.characters, self.attributes = characters, attributes
        return True

    def fitting(self, pairs: Iterable[tuple[str, Value]], content: Content) -> Pairs:
        """Yield the attributes that fit, and count the others as removed."""
        for name, value in pairs:
            if self.take([(name, value)]):
                yield name, value
            else:
                content.cut_characters += len(str(value))


def _message(prefix: str, message: Turn, content: Content) -> Pairs:
    """Yield the attributes of a message: a string is its content; of a list, each block is an entry of its contents."""
    yield f"{prefix}.role", str(message.raw.get("role"))
    if isinstance(message.raw.get("content"), str):
        yield f"{prefix}.content", shortened(message.text, content)
        return
    calls = 0
    for number, block in enumerate(message.blocks[:PARTS_MAX]):
        at = f"{prefix}.contents.{number}.message_content"
        match block.kind:
            case "result":
                yield from _result(prefix, block, content)
            case "call" | "provider_call":
                call = _call(block, content)
                for name, value in call:
                    yield f"{prefix}.tool_calls.{calls}.{name}", value
                yield f"{at}.type", "tool_use"
                for name, value in call:
                    yield f"{prefix}.contents.{number}.{name}", value
                calls += 1
            case _:
                yield from _part(at, block, content)


def _result(prefix: str, block: Block, content: Content) -> Pairs:
    yield f"{prefix}.tool_call_id", str(block.id)
    value = shortened(block.value, content)
    if value is not None:
        yield f"{prefix}.content", value if isinstance(value, str) else json_text(value)


def _call(block: Block, content: Content) -> list[tuple[str, Value]]:
    arguments = shortened(block.value, content)
    return [
        ("tool_call.id", str(block.id)),
        ("tool_call.function.name", block.name),
        ("tool_call.function.arguments", json_text(arguments)),
    ]


def _part(at: str, block: Block, content: Content) -> Pairs:
    """Yield the attributes of a text, of reasoning or of an image; any other block is its type and its JSON."""
    if block.kind == "text":
        yield f"{at}.type", "text"
        yield f"{at}.text", shortened(block.text, content)
    elif block.kind == "reasoning":
        yield f"{at}.type", "reasoning"
        if block.text or "data" not in block.raw:
            yield f"{at}.text", shortened(block.text, content)
        for name in ("signature", "data"):
            if value := block.raw.get(name):
                yield f"{at}.{name}", shortened(str(value), content)
    elif (url := _image_url(block)) is not None and shortened(url, Content()) == url:
        yield f"{at}.type", "image"
        yield f"{at}.image.image.url", url
    else:
        yield f"{at}.type", block.type
        yield f"{at}.text", json_text(shortened(dict(block.raw), content))


def _image_url(block: Block) -> str | None:
    """Return the URL of an image; images in the request itself become data URLs."""
    source = block.raw.get("source")
    if block.type != "image" or not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source["url"]) if "url" in source else None

"""Tools: python functions that the model may call, and how it is told of them.

The `tool` decorator makes one from a typed function, `declared` from a schema that is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from agentobs.agent.schema import input_model, input_schema, named_arguments, summary
from agentobs.records.canonical import Json

TIMEOUT_S = 120.0
"""How long a tool may run where nobody says otherwise, in seconds. Our choice."""

Function = Callable[..., Any]
"""A plain function, run in a thread, or an async one, run in the loop."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. Calling it yourself calls the function."""

    declaration: Json
    """What the provider is told: `name`, `description`, `input_schema`, or whatever was declared."""
    function: Function
    read_only: bool = False
    """Whether calls change nothing, so that neighbouring ones may run together."""
    timeout_s: float | None = TIMEOUT_S
    """How long one call may take, in seconds; None sets no end."""
    input: type[BaseModel] | None = None
    """What the input must look like; None hands the whole input to the function as one dict."""

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return str(self.declaration["name"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


@overload
def tool(fn: Function) -> Tool: ...


@overload
def tool(
    fn: None = None,
    *,
    read_only: bool = False,
    name: str | None = None,
    timeout_s: float | None = TIMEOUT_S,
) -> Callable[[Function], Tool]: ...


def tool(
    fn: Function | None = None,
    *,
    read_only: bool = False,
    name: str | None = None,
    timeout_s: float | None = TIMEOUT_S,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a typed function; use it with or without arguments.

    The docstring's text describes the tool, its `Args:` section (Google style) the arguments.

    Raises:
        UsageError: the signature cannot be told to the model.
    """

    def make(function: Function) -> Tool:
        model = input_model(function)
        declaration = {"name": name or function.__name__}
        if text := summary(inspect.getdoc(function) or ""):
            declaration["description"] = text
        declaration["input_schema"] = input_schema(model)
        return Tool(declaration, function, read_only, timeout_s, model)

    return make if fn is None else make(fn)


def declared(
    declaration: Json,
    function: Function,
    *,
    read_only: bool = False,
    timeout_s: float | None = TIMEOUT_S,
) -> Tool:
    """Make a tool of a declaration as it is, and a function that takes the input as one dict."""
    return Tool(declaration, function, read_only, timeout_s)


def declarations(tools: Sequence[Tool]) -> list[Json]:
    """Return what the provider is told of some tools."""
    return [tool.declaration for tool in tools]


def bind(tool: Tool, value: Any) -> Callable[[], Any]:
    """Return the call of a tool's function with the model's input.

    Raises:
        ValueError: the input does not fit; the text tells the model what to mend.
    """
    if not isinstance(value, dict):
        raise ValueError("the input is not a JSON object; perhaps it was cut")
    if tool.input is None:
        return lambda: tool.function(value)
    try:
        arguments = named_arguments(tool.input, value)
    except ValidationError as error:
        raise ValueError(_complaints(error)) from error
    return lambda: tool.function(**arguments)


RESULT_BLOCKS = {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
"""Kinds of blocks that a tool result may hold (anthropic 2.12, `ToolResultBlockParam`)."""


def render(value: Any) -> str | list[Json]:
    """Return a tool's result as the model will see it: text and blocks as they are, the rest as JSON.

    What JSON cannot hold is shown by `str`.
    """
    if _is_blocks(value):
        blocks: list[Json] = value
        return blocks
    if isinstance(value, str):
        # Half of a surrogate pair, as in a file name that is not UTF-8, cannot be sent.
        return value.encode("utf-8", "replace").decode("utf-8")
    try:
        return to_json(value).decode("utf-8")
    except PydanticSerializationError:
        return render(str(value))


def _is_blocks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(block, dict) and block.get("type") in RESULT_BLOCKS for block in value)
    )


def _complaints(error: ValidationError) -> str:
    """Say what does not fit, an argument a line, without pydantic's own vocabulary and links."""
    return "\n".join(
        f"{'.'.join(map(str, found['loc'])) or 'input'}: {found['msg']}"
        for found in error.errors(include_url=False, include_context=False, include_input=False)
    )

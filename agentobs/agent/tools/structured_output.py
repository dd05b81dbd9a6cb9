"""Structured output: the model passes its final response as the input of a dedicated tool.

Unlike the provider's output formats, a tool works with every model and together with other tools.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from agentobs.agent.tools.input_schema import input_schema
from agentobs.agent.tools.tool import complaints
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ToolAnswer

NAME = "structured_output"
"""The tool's name."""

NUDGE = f"You have not given your final answer yet. Pass it to the tool {NAME}."
"""The message for a model that stops without a call of the tool."""


def declaration(output: type[BaseModel]) -> Json:
    """Return the tool's declaration for the provider.

    Raises:
        UsageError: the model's type contains itself, so its schema cannot be inlined.
    """
    return {
        "name": NAME,
        "description": "Give your final answer. Call this once, when you are done.",
        "input_schema": input_schema(output),
    }


def parse_output(output: type[BaseModel], value: Any) -> tuple[BaseModel | None, ToolAnswer]:
    """Return the parsed output (None if it is invalid) and the result for the model."""
    try:
        return output.model_validate(value), ToolAnswer("The answer was accepted.")
    except ValidationError as error:
        text = f"The answer does not match the schema:\n{complaints(error)}"
        return None, ToolAnswer(text, is_error=True, outcome="invalid")

"""Structured output: the model gives its answer as the input of a tool that does nothing else.

A tool works with every model and beside other tools, which the provider's own output formats do not.
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

NUDGE = f"You have not given your answer yet. Call the tool {NAME} with it."
"""What the model is told when it ends without it."""


def declaration(output: type[BaseModel]) -> Json:
    """Return what the provider is told of the tool.

    Raises:
        UsageError: the model's type contains itself, so that its schema cannot be written out.
    """
    return {
        "name": NAME,
        "description": "Give your final answer. Call this once, when you are done.",
        "input_schema": input_schema(output),
    }


def taken(output: type[BaseModel], value: Any) -> tuple[BaseModel | None, ToolAnswer]:
    """Return the output that an input makes, or None, and what the model is told."""
    try:
        return output.model_validate(value), ToolAnswer("Thank you: that is the answer.")
    except ValidationError as error:
        text = f"The answer does not fit:\n{complaints(error)}"
        return None, ToolAnswer(text, is_error=True, outcome="invalid")

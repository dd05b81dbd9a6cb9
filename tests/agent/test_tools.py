"""Tools: from a typed function to a declaration, and from the model's input to a call."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentobs.agent.tools import Tool, bind, declarations, declared, render, tool
from agentobs.errors import UsageError


class Unit(enum.Enum):
    METRE = "m"
    MILE = "mi"


class Point(BaseModel):
    """A point on a map."""

    x: float
    y: float = Field(0.0, description="North is up")


class Tree(BaseModel):
    children: list[Tree] = []


@tool(read_only=True)
def distance(
    start: Point,
    stops: list[Point],
    unit: Unit = Unit.METRE,
    title: str | None = None,
    copy: Annotated[int, Field(ge=1, description="How many copies")] = 1,
) -> str:
    """Measure the way along some points.

    As the crow flies.

    Args:
        start (Point): where the way begins,
            in map units.
        stops: the points to pass.
        title: a name: any text.

    Returns:
        The distance.
    """
    return f"{type(start).__name__} {[type(s).__name__ for s in stops]} {unit} {title} {copy}"


def point(**beside: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A point on a map.",
        "properties": {
            "x": {"type": "number"},
            "y": {"type": "number", "default": 0.0, "description": "North is up"},
        },
        "required": ["x"],
        **beside,
    }


def test_a_signature_becomes_a_schema() -> None:
    """Types, defaults and docstring become one schema without references or titles."""
    assert declarations([distance]) == [
        {
            "name": "distance",
            "description": "Measure the way along some points.\n\nAs the crow flies.",
            "input_schema": {
                "type": "object",
                "properties": {
                    "start": point(description="where the way begins, in map units."),
                    "stops": {
                        "type": "array",
                        "items": point(),
                        "description": "the points to pass.",
                    },
                    "unit": {"type": "string", "enum": ["m", "mi"], "default": "m"},
                    "title": {
                        "anyOf": [{"type": "string"}, {"type": "null"}],
                        "default": None,
                        "description": "a name: any text.",
                    },
                    "copy": {
                        "type": "integer",
                        "minimum": 1,
                        "default": 1,
                        "description": "How many copies",
                    },
                },
                "required": ["start", "stops"],
                "additionalProperties": False,
            },
        }
    ]


def test_a_bare_decorator_keeps_a_callable() -> None:
    """`@tool` alone makes a tool with the function's name; calling it calls the function."""

    @tool
    def double(number: int) -> int:
        return number * 2

    assert (double.name, double.read_only, double(4)) == ("double", False, 8)
    assert double.declaration == {
        "name": "double",
        "input_schema": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
            "additionalProperties": False,
        },
    }


def test_a_declaration_is_sent_as_it_is() -> None:
    """A declared tool keeps its declaration to the letter, and its function takes the whole input."""
    declaration = {"name": "memory", "type": "memory_20250818"}
    memory = declared(declaration, lambda value: sorted(value), read_only=True)
    assert memory == Tool(declaration, memory.function, read_only=True)
    assert memory.declaration is declaration
    assert bind(memory, {"b": 1, "a": 2})() == ["a", "b"]


def test_input_is_validated_and_defaults_stay_with_the_function() -> None:
    """Nested input arrives as the types of the signature; what is left out takes the function's default."""
    called = bind(distance, {"start": {"x": 1}, "stops": [{"x": 2}], "copy": 2})
    assert called() == "Point ['Point'] Unit.METRE None 2"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"stops": [{"y": 1}]}, "start: Field required\nstops.0.x: Field required"),
        (
            {"start": {"x": 0}, "stops": [], "where": 1},
            "where: Extra inputs are not permitted",
        ),
        ('{"start": {', "the input is not a JSON object; perhaps it was cut"),
    ],
)
def test_what_does_not_fit_is_said_by_argument(value: Any, complaint: str) -> None:
    """Input that does not fit is refused with a line per argument, in the names that the model used."""
    with pytest.raises(ValueError) as raised:
        bind(distance, value)
    assert str(raised.value) == complaint


def test_signatures_that_the_model_cannot_use_are_refused() -> None:
    """Arguments without a name of their own and types that contain themselves are the author's mistake."""

    def rest(*words: str) -> None: ...

    def tree(root: Tree) -> None: ...

    with pytest.raises(UsageError, match="cannot give `\\*words: str` of rest by name"):
        tool(rest)
    with pytest.raises(UsageError, match="the type Tree of a tool's input contains itself"):
        tool(tree)


@dataclasses.dataclass
class Found:
    path: str
    unit: Unit


class Strange:
    def __str__(self) -> str:
        return "strange"


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        ("plain", "plain"),
        ("caf\udce9", "caf?"),
        ([{"type": "text", "text": "a block"}], [{"type": "text", "text": "a block"}]),
        ([{"type": "dog"}], '[{"type":"dog"}]'),
        ([], "[]"),
        (Point(x=1, y=0), '{"x":1.0,"y":0.0}'),
        (Found("ä", Unit.MILE), '{"path":"ä","unit":"mi"}'),
        ({"n": [1, None, True]}, '{"n":[1,null,true]}'),
        (None, "null"),
        (Strange(), "strange"),
    ],
)
def test_results_are_rendered_for_the_model(result: Any, seen: Any) -> None:
    """Text and content blocks pass as they are; everything else is shown as JSON, or at worst by `str`."""
    assert render(result) == seen


def test_literal_types_stay_closed() -> None:
    """A Literal becomes an enum that the model can choose from."""

    @tool(name="pick_one", timeout_s=None)
    async def pick(colour: Literal["red", "blue"]) -> str:
        return colour

    assert pick.name == "pick_one"
    assert pick.timeout_s is None
    assert pick.declaration["input_schema"]["properties"] == {
        "colour": {"type": "string", "enum": ["red", "blue"]}
    }

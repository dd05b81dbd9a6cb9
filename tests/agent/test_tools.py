"""Tools: from a typed function to a declaration, and from the input of a call to arguments."""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentobs.agent.tools.tool import (
    COMPLAINTS_MAX,
    Tool,
    bind,
    check_tools,
    complaints,
    declarations,
    declared,
    find_tool,
    invalid_input_result,
    tool,
    unknown_tool_result,
)
from agentobs.errors import UsageError


class Unit(enum.Enum):
    METRE = "m"
    MILE = "mi"


class Point(BaseModel):
    """A point on a map."""

    model_config = ConfigDict(extra="forbid")

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


def point(**extra: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A point on a map.",
        "properties": {
            "x": {"type": "number"},
            "y": {"type": "number", "default": 0.0, "description": "North is up"},
        },
        "required": ["x"],
        "additionalProperties": False,
        **extra,
    }


def test_a_signature_becomes_a_schema() -> None:
    """The types, defaults and docstring of a function become one schema without references or titles."""
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


def test_a_decorator_without_arguments() -> None:
    """`@tool` without arguments makes a tool with the name of the function, and the tool can be called like the
    function.
    """

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


def test_a_declaration_is_sent_unchanged() -> None:
    """The declaration of a declared tool is sent unchanged, and its function gets the complete input."""
    declaration = {"name": "memory", "type": "memory_20250818"}
    memory = declared(declaration, lambda value: sorted(value), read_only=True)
    assert memory.read_only
    assert memory.declaration is declaration
    assert bind(memory, {"b": 1, "a": 2}).call() == ["a", "b"]


def test_input_is_validated() -> None:
    """Nested input is converted to the types of the signature, and the function's defaults replace missing values."""
    bound = bind(distance, {"start": {"x": 1}, "stops": [{"x": 2}], "copy": 2})
    assert bound.call() == "Point ['Point'] Unit.METRE None 2"
    assert bound.arguments == {
        "start": Point(x=1, y=0),
        "stops": [Point(x=2, y=0)],
        "unit": Unit.METRE,
        "title": None,
        "copy": 2,
    }


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (
            {"stops": [{"y": 1}]},
            "start: required, but missing (expected type: object)\n"
            "stops.0.x: required, but missing",
        ),
        (
            {"start": {"x": 0}, "stops": [], "where": 1},
            "where: there is no argument with this name; the arguments are: start, stops, unit, title, copy",
        ),
        (
            {"start": {"x": 0, "z": 1}, "stops": "none", "copy": 0, "unit": "km"},
            "start.z: there is no argument with this name\n"
            "stops: Input should be a valid list\n"
            "unit: Input should be 'm' or 'mi'\n"
            "copy: Input should be greater than or equal to 1",
        ),
        ('{"start": {', "the input is not a JSON object; perhaps it was cut off"),
    ],
)
def test_errors_of_invalid_input_name_the_arguments(value: Any, complaint: str) -> None:
    """Invalid input is rejected with one line per argument that contains the name that the model used."""
    with pytest.raises(ValueError) as raised:
        bind(distance, value)
    assert str(raised.value) == complaint


def test_unusable_signatures_are_rejected() -> None:
    """A function with unnamed arguments or recursive types is rejected."""

    def rest(*words: str) -> None: ...

    def tree(root: Tree) -> None: ...

    with pytest.raises(UsageError, match=r"cannot pass `\*words` of .*rest by name"):
        tool(rest)
    with pytest.raises(UsageError, match="the type Tree of a tool's input contains itself"):
        tool(tree)


def test_a_literal_type_becomes_an_enum() -> None:
    """The model can choose only from the values of the `Literal`."""

    @tool(name="pick_one", timeout_s=None)
    async def pick(color: Literal["red", "blue"]) -> str:
        return color

    assert pick.name == "pick_one"
    assert pick.timeout_s is None
    assert pick.declaration["input_schema"]["properties"] == {
        "color": {"type": "string", "enum": ["red", "blue"]}
    }


def google(path: str, depth: int = 1) -> None:
    """List a directory.

    Links are not followed. Note: slow.

    Args:
        path (str): where to look,
            below the root.
        depth: how deep: at most 9.

    Returns:
        The names.

    Raises:
        OSError: it is not there.
    """


def numpy(path: str, depth: int = 1) -> None:
    """List a directory.

    Links are not followed. Note: slow.

    Parameters
    ----------
    path : str
        where to look,
        below the root.
    depth : int, optional
        how deep: at most 9.

    Returns
    -------
    list
        The names.
    """


def rest(path: str, depth: int = 1) -> None:
    """List a directory.

    Links are not followed. Note: slow.

    :param path: where to look,
        below the root.
    :param int depth: how deep: at most 9.
    :returns: The names.
    """


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_docstrings_of_three_styles_are_parsed(function: Callable[..., Any]) -> None:
    """Google, NumPy and reST docstrings give the same descriptions of a tool and its arguments."""
    declaration = tool(function).declaration
    assert declaration["description"] == "List a directory.\n\nLinks are not followed. Note: slow."
    assert {
        name: schema["description"]
        for name, schema in declaration["input_schema"]["properties"].items()
    } == {"path": "where to look, below the root.", "depth": "how deep: at most 9."}


def test_a_docstring_in_no_style_is_kept_completely() -> None:
    """Text that only looks like a section, and a malformed section, are kept in the description."""

    def free(path: str) -> None:
        """Send to a@b.c.

        Use it: like this.
        @here is text.
        :note: so is this.
        """

    def broken(path: str) -> None:
        """Look.

        Args:
            no colon here
        """

    assert tool(free).declaration["description"] == (
        "Send to a@b.c.\n\nUse it: like this.\n@here is text.\n:note: so is this."
    )
    assert tool(broken).declaration["description"] == "Look.\n\nArgs:\n    no colon here"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    owner: Point | None = None


def test_nested_types_are_expanded_inline() -> None:
    """A schema contains no references, even for models in unions, lists, mappings, tuples and other models."""

    @tool
    def adopt(
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
        homes: dict[str, list[Point]],
        pair: tuple[Point, Unit],
        either: int | Literal["none"] | None = None,
    ) -> None: ...

    properties = adopt.declaration["input_schema"]["properties"]
    assert "$ref" not in str(properties)
    assert "$defs" not in str(adopt.declaration)
    cat, dog = properties["pet"]["oneOf"]
    assert cat["properties"]["kind"] == {"type": "string", "const": "cat"}
    assert dog["properties"]["owner"] == {"anyOf": [point(), {"type": "null"}], "default": None}
    assert properties["homes"]["additionalProperties"] == {"type": "array", "items": point()}
    assert properties["pair"]["prefixItems"] == [point(), {"type": "string", "enum": ["m", "mi"]}]
    assert properties["either"]["anyOf"] == [
        {"type": "integer"},
        {"type": "string", "const": "none"},
        {"type": "null"},
    ]


def test_defaults_of_a_tool_are_restrictive() -> None:
    """By default, a tool needs permission, counts as destructive, and is neither concurrent nor read-only nor retried
    nor optional.
    """

    @tool
    def act() -> None: ...

    for restricted_tool in (act, declared({"name": "act"}, print), Tool({"name": "act"}, print)):
        assert (
            restricted_tool.tool_class,
            restricted_tool.read_only,
            restricted_tool.concurrent,
        ) == ("write", False, False)
        assert (restricted_tool.needs_permission, restricted_tool.destructive) == (True, True)
        assert (restricted_tool.retries, restricted_tool.optional, restricted_tool.available) == (
            0,
            False,
            None,
        )
        assert (restricted_tool.cancels_siblings, restricted_tool.interrupt) == (False, None)


def test_tool_classes_have_defaults() -> None:
    """The tool class sets defaults: a reader is concurrent and not destructive, and a failing shell stops its siblings.
    Explicit settings take precedence.
    """

    @tool(read_only=True)
    def look() -> None: ...

    @tool(tool_class="shell")
    def run() -> None: ...

    @tool(tool_class="read", concurrent=False, needs_permission=False, aliases=["view"])
    def alone() -> None: ...

    assert (look.tool_class, look.concurrent, look.destructive) == ("read", True, False)
    assert look.needs_permission
    assert (run.concurrent, run.destructive, run.cancels_siblings) == (False, True, True)
    assert (alone.read_only, alone.concurrent, alone.aliases) == (True, False, ("view",))


def edit(path: str, text: str = "") -> None: ...


def of_other(size: int) -> None: ...


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"read_only": True, "destructive": True},
            "`destructive` .* a read-only tool cannot be destructive",
        ),
        (
            {"read_only": True, "tool_class": "shell"},
            "`read_only` .* contradicts tool_class='shell'",
        ),
        (
            {"read_only": False, "tool_class": "read"},
            "`read_only` .* contradicts tool_class='read'",
        ),
        (
            {"tool_class": "mystery"},
            "`tool_class` .* 'mystery' is not one of read, edit, write, shell",
        ),
        ({"interrupt": "maybe"}, "`interrupt` .* 'maybe' is not one of cancel, block"),
        ({"retries": -1}, "`retries` .* -1 must be 0 or more"),
        ({"timeout_s": 0}, "`timeout_s` .* 0 must be above 0"),
        ({"timeout_s": float("nan")}, "`timeout_s` .* nan must be above 0"),
        ({"result_chars_max": 0}, "`result_chars_max` .* 0 must be 1 or more"),
        ({"subject": "file"}, "`subject` .* there is no argument 'file'"),
        ({"paths": ["path", "to"]}, "`paths` .* there is no argument 'to'"),
        ({"hosts": ["url"]}, "`hosts` .* there is no argument 'url'"),
        ({"paths": "path"}, "`paths` .* a string was passed instead of a tuple of names"),
        ({"aliases": ["edit"]}, "`aliases` .* or is the name of the tool"),
        ({"check": of_other}, "`check` .* it takes 'size', which is not an argument"),
    ],
)
def test_contradictory_settings_are_rejected(settings: Mapping[str, Any], complaint: str) -> None:
    """Contradictory settings are rejected with an error that names the tool, its function and the setting."""
    with pytest.raises(UsageError, match=complaint) as raised:
        tool(**settings)(edit)
    assert "the tool edit (tests.agent.test_tools.edit)" in str(raised.value)


def test_missing_names_and_unknown_settings_are_rejected() -> None:
    """A lambda without a tool name is rejected, and an unknown setting is a TypeError."""
    with pytest.raises(UsageError, match="has no name"):
        tool(lambda: None)
    assert tool(name="constant")(lambda: None).name == "constant"
    with pytest.raises(TypeError, match="safe"):
        tool(safe=True)(edit)  # type: ignore[call-overload]  # an unknown setting


@pytest.mark.parametrize("name", ["two words", "a.b", "é", "a\n", "x" * 129, "a(b)", "*"])
def test_names_that_the_provider_would_reject_are_rejected(name: str) -> None:
    """A name or alias is rejected unless it consists of 1 to 128 letters, digits, `_` and `-`, as the provider
    requires.
    """
    for make in (tool(name=name), lambda function: declared({"name": name}, function)):
        with pytest.raises(UsageError, match=r"(?s)`name` of .* must have 1 to 128 characters"):
            make(edit)
    with pytest.raises(
        UsageError, match=r"(?s)`aliases` of the tool edit .* must have 1 to 128 characters"
    ):
        tool(aliases=[name])(edit)
    longest = "aZ_-9" + "x" * 123
    assert tool(aliases=[longest])(edit).aliases == (longest,)


def test_the_return_type_need_not_be_resolvable() -> None:
    """A return type that cannot be resolved is ignored, but an argument type that cannot be resolved is an error that
    names the argument.
    """

    def look(path: str) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821

    def find(path: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert tool(look).name == "look"
    with pytest.raises(
        UsageError, match=r"of the argument path of .*find is unknown: name 'Nowhere'"
    ):
        tool(find)


def test_types_without_a_json_schema_are_rejected() -> None:
    """If the type of an argument has no JSON schema, or its default is a `Field`, an error names the argument."""

    def call(count: int, back: Callable[[], int]) -> None: ...

    def odd(thing: Mapping[str, Strange]) -> None: ...

    def field(size: int = Field(3, ge=1)) -> None: ...

    with pytest.raises(UsageError, match=r"of the argument back of .*call cannot be described"):
        tool(call)
    with pytest.raises(
        UsageError, match=r"of the argument thing of .*odd cannot be described to the model"
    ):
        tool(odd)
    with pytest.raises(
        UsageError, match=r"the default of the argument size of .*field is a pydantic"
    ):
        tool(field)


class Strange: ...


def test_names_in_a_tool_set_are_unique() -> None:
    """Duplicate names or aliases in a tool set are rejected, and each tool is validated again."""
    one = tool(name="one", aliases=["uno"])(edit)
    check_tools([one, tool(name="two")(edit)])
    for name, aliases in (("one", []), ("uno", []), ("two", ["one"]), ("two", ["uno"])):
        other = tool(name=name, aliases=aliases)(edit)
        with pytest.raises(UsageError, match=r"is already the name of the tool one .*edit"):
            check_tools([one, other])
    with pytest.raises(UsageError, match="`destructive` of the tool raw"):
        check_tools([Tool({"name": "raw"}, edit, tool_class="read")])


def test_tools_are_found_by_former_names() -> None:
    """A tool is found by its name and its aliases; the current name of one tool takes precedence over the former name
    of another.
    """
    one, two = tool(name="one", aliases=["old"])(edit), tool(name="old")(edit)
    assert find_tool([one], "old") is one
    assert find_tool([one, two], "old") is two
    assert find_tool([one, two], "older") is None


@tool
def take(
    count: int = 0,
    ratio: float = 0.0,
    deep: bool = False,
    stops: list[Point] | None = None,
    unit: Unit = Unit.METRE,
    when: dt.date | None = None,
    where: pathlib.Path | None = None,
    numbers: set[int] | list[float] | None = None,
    free: Any = None,
) -> None: ...


@pytest.mark.parametrize(
    ("value", "coerced"),
    [
        ({}, ()),
        ({"count": 3, "ratio": 3, "deep": True, "free": "3"}, ()),
        ({"count": 3.0}, ()),
        ({"unit": "mi", "when": "2026-01-31", "where": "a//b", "numbers": [1, 1]}, ()),
        ({"count": "3"}, ("count",)),
        ({"count": True, "deep": "yes", "ratio": "0.5"}, ("count", "ratio", "deep")),
        ({"stops": [{"x": 1}, {"x": "1", "y": "2"}]}, ("stops.1.x", "stops.1.y")),
        ({"numbers": [1, "2"]}, ("numbers.1",)),
        ({"free": "caf\udce9"}, ()),
    ],
)
def test_coerced_values_are_reported(value: Any, coerced: tuple[str, ...]) -> None:
    """The paths of values that were converted from another JSON type are reported, even if nested; defaults are not
    reported.
    """
    assert bind(take, value).coerced == coerced


def test_a_tool_cannot_change_the_recorded_input() -> None:
    """If a tool modifies its arguments, the recorded input does not change."""

    @tool
    def spoil(free: Any) -> None:
        free.append(1)

    value: dict[str, Any] = {"free": []}
    bind(spoil, value).call()
    bind(declared({"name": "spoil"}, lambda value: value.clear()), value).call()
    assert value == {"free": []}


class Picky(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def refuse(cls, text: str) -> str:
        if text == "value":
            raise ValueError("x" * 1_000_000)
        raise {"exit": SystemExit, "key": KeyError}[text]("no")


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("value", "picky.text: Value error, xxxx"),
        ("exit", "its validation failed with SystemExit('no')"),
        ("key", "its validation failed with KeyError('no')"),
    ],
)
def test_failing_validators_make_the_input_invalid(text: str, begins: str) -> None:
    """If a validator raises any exception, the input is invalid, and the error for the model has a limited length."""

    @tool
    def use(picky: Picky) -> None: ...

    with pytest.raises(ValueError) as raised:
        bind(use, {"picky": {"text": text}})
    assert str(raised.value).startswith(begins)
    assert len(str(raised.value)) < 20_000


def test_input_that_is_nested_too_deeply_is_invalid() -> None:
    """Input that is nested too deeply is invalid and does not cause a `RecursionError`."""
    deep: Any = []
    for _ in range(3_000):
        deep = [deep]
    with pytest.raises(ValueError, match="the input is nested too deeply"):
        bind(take, {"free": deep})


def test_many_errors_are_shortened() -> None:
    """If the input has a thousand errors, the model gets the first errors and the number of the others."""
    with pytest.raises(ValueError, match="and 980 more") as raised:
        bind(take, {"stops": [{}] * 1_000})
    assert len(str(raised.value).splitlines()) == COMPLAINTS_MAX + 1


def test_errors_of_any_model_can_be_described() -> None:
    """The errors of any model can be described without a tool; if the valid names are unknown, none are listed."""
    with pytest.raises(ValidationError) as raised:
        Point.model_validate({"z": 1})
    assert complaints(raised.value) == (
        "x: required, but missing\nz: there is no argument with this name"
    )


def test_results_of_calls_that_cannot_run_are_limited() -> None:
    """The result for an unknown tool lists the available names, the result for invalid input describes the mistake, and
    both have a limited length.
    """
    assert (
        unknown_tool_result([take], "tke").content
        == "There is no tool named 'tke'. The tools are: take."
    )
    assert (
        unknown_tool_result([], "\ud800").content
        == "There is no tool named '\\ud800'. The tools are: none."
    )
    assert len(unknown_tool_result([take], "x" * 10**6).content) < 300
    assert invalid_input_result(take, "count: too many").content == (
        "The input of take is invalid:\ncount: too many"
    )
    assert (unknown_tool_result([], "a").outcome, invalid_input_result(take, "").outcome) == (
        "unknown",
        "invalid",
    )

"""Paths and hosts are read from the arguments of a call; values that cannot be read count as forbidden."""

from __future__ import annotations

import ipaddress
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import AfterValidator, BaseModel, Field, HttpUrl

from agentobs.agent.events import ToolDone
from agentobs.agent.permissions import Call, Permissions, decide
from agentobs.agent.tool_calls.call_effects import effects_of
from agentobs.agent.tool_calls.rule_subject import call_of, raw_paths, resolved_paths
from agentobs.agent.tools.tool import Tool, bind, declared, tool
from agentobs.errors import UsageError
from agentobs.records.exchanges import ToolQuestion
from tests.agent.agent_runs import events_of, of_kind
from tests.agent.provider import Provider, call, message, streamed, text

from .calls import permissions_for


class File(BaseModel):
    file: str


class Name(StrEnum):
    NOTES = "notes.txt"


class Lying(str):
    """A string whose `__str__` returns a different text."""

    def __str__(self) -> str:
        return "inside.txt"


FilePath = NewType("FilePath", str)
DISGUISED = Annotated[str, AfterValidator(lambda text: File(file=text))]
LYING = Annotated[str, AfterValidator(Lying)]
AS_BYTES: Any = Annotated[str, AfterValidator(lambda text: text.encode())]


def tool_with(annotation: Any, **settings: Any) -> Tool:
    """Return a tool with one argument `x`."""

    def take(x: Any) -> str:
        return f"took {x!r}"

    take.__annotations__["x"] = annotation
    return tool(name="take", read_only=True, **settings)(take)


def call_with(tested_tool: Tool, value: Any) -> Call:
    question = ToolQuestion("a", tested_tool.name, {"x": value})
    arguments = bind(tested_tool, question.input).arguments
    paths = raw_paths(tested_tool, arguments)
    answer = [{"path": path, "inside": True} for path in paths]
    effects = effects_of(tested_tool, arguments)
    return call_of(tested_tool, question, arguments, resolved_paths(paths, answer), effects)


def outcome(tested_tool: Tool, value: Any, permissions: Permissions, root: Path) -> str:
    """Run one call through the loop and return its outcome."""
    replies = [
        streamed(message(call("a", tested_tool.name, x=value))),
        streamed(message(text("Done."))),
    ]
    with Provider(replies) as provider:
        events = events_of(
            provider, tools=[tested_tool], permissions=permissions, world={"roots": (root,)}
        )
    (done,) = of_kind(events, ToolDone)
    return done.answer.outcome or ""


READABLE: list[tuple[Any, Callable[[str], Any]]] = [
    (str, lambda path: path),
    (Path, lambda path: path),
    (FilePath, lambda path: path),
    (str | None, lambda path: path),
    (list[str], lambda path: ["inside.txt", path]),
    (list[Path], lambda path: [path]),
    (tuple[str, ...], lambda path: [path]),
    (set[str], lambda path: [path]),
    (frozenset[str], lambda path: ["inside.txt", path]),
    (Sequence[Path], lambda path: [path]),
    (list[str] | str, lambda path: [path]),
    (Annotated[list[Annotated[str, Field(max_length=999)]], Field(max_length=9)], lambda path: [path]),
    (LYING, lambda path: path),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value"), READABLE)
def test_paths_are_found_in_all_types_of_arguments(
    annotation: Any, value: Any, tmp_path: Path
) -> None:
    """A path outside of the root is denied if it is a string, a `Path`, or an item of any kind of flat list or set."""
    root = tmp_path / "root"
    root.mkdir()
    tested_tool = tool_with(annotation, paths=("x",))
    assert outcome(tested_tool, value("inside.txt"), Permissions(), root) == "executed"
    assert (
        outcome(tested_tool, value(str(tmp_path / "secret.txt")), Permissions(), root) == "denied"
    )


UNSPECIFIC: list[tuple[Any, Any]] = [
    (Any, {"a": "inside.txt"}),
    (Any, {"inside.txt": 1}),
    (Any, [["inside.txt"]]),
    (Any, ["inside.txt", {"a": "b"}]),
    (Any, [None]),
    (Any, 3),
    (Any, True),
    (list, [["inside.txt"]]),
    (object, {"a": "inside.txt"}),
    (DISGUISED, "inside.txt"),
    (AS_BYTES, "inside.txt"),
]


@pytest.mark.parametrize(("annotation", "value"), UNSPECIFIC)
def test_an_unreadable_path_counts_as_outside(annotation: Any, value: Any, tmp_path: Path) -> None:
    """If no path can be read from the value of a path argument, or a validator changes the value, the call is denied
    even with bypassed permissions.
    """
    tested_tool = tool_with(annotation, paths=("x",))
    assert outcome(tested_tool, value, permissions_for("bypassPermissions"), tmp_path) == "denied"
    assert [path.inside for path in call_with(tested_tool, value).paths][-1:] == [False]


def test_paths_of_a_declared_tool_are_checked(tmp_path: Path) -> None:
    """For a tool without argument types, a value that is not a path is denied; null and a list of paths are
    accepted.
    """
    tested_tool = declared(
        {"name": "take", "input_schema": {"type": "object"}}, str, read_only=True, paths=("x",)
    )
    permissions = permissions_for("bypassPermissions")
    assert outcome(tested_tool, {"p": "inside.txt"}, permissions, tmp_path) == "denied"
    assert outcome(tested_tool, ["inside.txt"], permissions, tmp_path) == "executed"
    assert outcome(tested_tool, None, permissions, tmp_path) == "executed"


UNREADABLE: list[Any] = [
    bytes,
    dict[str, str],
    Mapping[str, int],
    File,
    list[File],
    list[list[str]],
    list[bytes],
    list[str | None],
    deque[str],
    Iterable[str],
    str | bytes,
    list[str] | dict[str, str],
    Literal["a", 1],
    Annotated[File, Field(description="a file")],
    tuple[str, tuple[str, ...]],
    int,
]


@pytest.mark.parametrize("annotation", UNREADABLE, ids=str)
@pytest.mark.parametrize("field", ["paths", "hosts"])
def test_a_type_that_cannot_be_checked_is_rejected(annotation: Any, field: str) -> None:
    """A tool is rejected if the type of a path or host argument includes unreadable values; the error names the
    function and the argument.
    """
    with pytest.raises(
        UsageError, match=f"`{field}` of .*take.* the argument 'x' must be a"
    ) as raised:
        tool_with(annotation, **{field: ("x",)})
    assert "test_path_and_host_arguments.tool_with.<locals>.take" in str(raised.value)


def test_a_string_subclass_counts_as_its_characters() -> None:
    """A check uses the characters of a string subclass, not the result of its `__str__`."""
    assert raw_paths(tool_with(LYING, paths=("x",)), {"x": Lying("/etc/passwd")}) == (
        "/etc/passwd",
    )
    assert raw_paths(tool_with(Name, paths=("x",)), {"x": Name.NOTES}) == ("notes.txt",)


def test_paths_of_a_set_are_sorted() -> None:
    """The paths of a set are resolved in sorted order, so that a replay in another process finds the recorded
    answers.
    """
    names = {f"{number}.txt" for number in range(50)}
    for value in (names, frozenset(names), {Path(name) for name in names}):
        assert raw_paths(tool_with(Any, paths=("x",)), {"x": value}) == tuple(sorted(names))


HOSTS: list[tuple[Any, Any]] = [
    (str, "https://evil.example/x"),
    (HttpUrl, "https://evil.example/x"),
    (frozenset[str], ["good.example", "evil.example"]),
    (list[HttpUrl], ["https://evil.example"]),
    (Any, {"host": "good.example"}),
    (Any, [["good.example"]]),
    (Any, 3),
    (DISGUISED, "good.example"),
]


@pytest.mark.parametrize(("annotation", "value"), HOSTS)
def test_an_unreadable_host_counts_as_blocked(annotation: Any, value: Any, tmp_path: Path) -> None:
    """If any host is blocked, a value from which no host can be read also counts as blocked."""
    tested_tool = tool_with(annotation, hosts=("x",))
    blocked = permissions_for("bypassPermissions", blocked=("evil.example",))
    assert outcome(tested_tool, value, blocked, tmp_path) == "denied"
    assert outcome(tested_tool, value, permissions_for("bypassPermissions"), tmp_path) == "executed"


def test_the_reason_reports_an_unreadable_host() -> None:
    """The reason of the denial states that the host cannot be parsed; if the host is not blocked, a rule for hosts
    requires approval instead of allowing the call.
    """
    tested_tool = tool_with(Any, hosts=("x",))
    odd = call_with(tested_tool, ["good.example", {"host": "evil.example"}])
    assert odd.hosts == ("good.example", "<the argument x: list>")
    decision = decision_for(odd, blocked=("other.example",))
    assert decision.behavior == "deny"
    assert "'<the argument x: list>' cannot be parsed" in decision.reason
    assert decision_for(odd, deny=("take(host:evil.example)",)).behavior == "ask"
    lists = {"ask": ("take(host:none.example)",), "allow": ("take(host:good.example)",)}
    assert decision_for(odd, **lists).behavior == "ask"


def test_address_objects_are_hosts() -> None:
    """Address objects of the standard library are read as hosts."""
    tested_tool = tool_with(ipaddress.IPv4Address | HttpUrl, hosts=("x",))
    assert call_with(tested_tool, "10.0.0.1").hosts == ("10.0.0.1",)
    assert (
        decision_for(call_with(tested_tool, "10.0.0.1"), blocked=("10.0.0.0/8",)).behavior == "deny"
    )


def test_a_path_with_a_failing_fspath_counts_as_outside() -> None:
    """An object whose `__fspath__` raises or returns bytes counts as a path outside of the roots."""

    class Broken(os.PathLike[str]):
        def __fspath__(self) -> str:
            raise SystemExit

    class Bytes(os.PathLike[bytes]):
        def __fspath__(self) -> bytes:
            return b"inside.txt"

    tested_tool = tool_with(Any, paths=("x",))
    for value in (Broken(), Bytes()):
        question = ToolQuestion("a", "take", {})
        assert raw_paths(tested_tool, {"x": value}) == ()
        effects = effects_of(tested_tool, {"x": value})
        (path,) = call_of(tested_tool, question, {"x": value}, (), effects).paths
        assert not path.inside


def decision_for(call: Call, **lists: Any) -> Any:
    return decide(call, permissions_for(**lists))

"""Paths and hosts are read from the arguments of a call, and unreadable ones count as forbidden."""

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
from agentobs.agent.tool_calls.rule_subject import call_of, raw_paths, resolved_paths
from agentobs.agent.tools.tool import Tool, bind, declared, tool
from agentobs.errors import UsageError
from agentobs.records.exchanges import ToolQuestion
from tests.agent.provider import Provider, call, message, streamed, text
from tests.agent.scene import events_of, of_kind

from .calls import permitted


class File(BaseModel):
    file: str


class Name(StrEnum):
    NOTES = "notes.txt"


class Lying(str):
    """A string whose `__str__` returns another text."""

    def __str__(self) -> str:
        return "inside.txt"


FilePath = NewType("FilePath", str)
DISGUISED = Annotated[str, AfterValidator(lambda text: File(file=text))]
LYING = Annotated[str, AfterValidator(Lying)]
LEADING: Any = Annotated[str, AfterValidator(lambda text: text.encode())]


def taking(annotation: Any, **settings: Any) -> Tool:
    """Make a tool with one argument `x`."""

    def take(x: Any) -> str:
        return f"took {x!r}"

    take.__annotations__["x"] = annotation
    return tool(name="take", read_only=True, **settings)(take)


def called(made: Tool, value: Any) -> Call:
    question = ToolQuestion("a", made.name, {"x": value})
    arguments = bind(made, question.input).arguments
    asked = raw_paths(made, arguments)
    answer = [{"path": path, "inside": True} for path in asked]
    return call_of(made, question, arguments, resolved_paths(asked, answer))


def outcome(made: Tool, value: Any, permissions: Permissions, root: Path) -> str:
    """Run one call through the loop."""
    replies = [streamed(message(call("a", made.name, x=value))), streamed(message(text("Done.")))]
    with Provider(replies) as provider:
        events = events_of(
            provider, tools=[made], permissions=permissions, world={"roots": (root,)}
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
def test_each_path_is_looked_at_however_it_is_held(
    annotation: Any, value: Any, tmp_path: Path
) -> None:
    """A path that leads outside is denied as a string, a `Path`, and in each kind of flat list or set."""
    root = tmp_path / "root"
    root.mkdir()
    made = taking(annotation, paths=("x",))
    assert outcome(made, value("inside.txt"), Permissions(), root) == "executed"
    assert outcome(made, value(str(tmp_path / "secret.txt")), Permissions(), root) == "denied"


OPEN: list[tuple[Any, Any]] = [
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
    (LEADING, "inside.txt"),
]


@pytest.mark.parametrize(("annotation", "value"), OPEN)
def test_what_is_no_path_counts_as_outside(annotation: Any, value: Any, tmp_path: Path) -> None:
    """If the type says nothing, or a validator changes it, an unreadable value is denied in every mode."""
    made = taking(annotation, paths=("x",))
    assert outcome(made, value, permitted("bypassPermissions"), tmp_path) == "denied"
    assert [path.inside for path in called(made, value).paths][-1:] == [False]


def test_a_declared_tool_is_held_to_paths_too(tmp_path: Path) -> None:
    """For a tool without types, anything that is not a path is denied, including a missing value."""
    made = declared(
        {"name": "take", "input_schema": {"type": "object"}}, str, read_only=True, paths=("x",)
    )
    permissions = permitted("bypassPermissions")
    assert outcome(made, {"p": "inside.txt"}, permissions, tmp_path) == "denied"
    assert outcome(made, ["inside.txt"], permissions, tmp_path) == "executed"
    assert outcome(made, None, permissions, tmp_path) == "executed"


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
def test_a_type_that_nobody_could_check_is_refused(annotation: Any, field: str) -> None:
    """If the type shows it, the tool is refused; the error names the function and the argument."""
    with pytest.raises(UsageError, match=f"`{field}` of .*take.* the argument 'x' is no") as raised:
        taking(annotation, **{field: ("x",)})
    assert "test_places.taking.<locals>.take" in str(raised.value)


def test_a_text_is_read_as_the_system_reads_it() -> None:
    """A string subclass counts as its characters, not as its `__str__`."""
    assert raw_paths(taking(LYING, paths=("x",)), {"x": Lying("/etc/passwd")}) == ("/etc/passwd",)
    assert raw_paths(taking(Name, paths=("x",)), {"x": Name.NOTES}) == ("notes.txt",)


def test_the_paths_of_a_set_have_an_order() -> None:
    """Another process asks about the same paths in the same order, so that a replay can answer."""
    names = {f"{number}.txt" for number in range(50)}
    for held in (names, frozenset(names), {Path(name) for name in names}):
        assert raw_paths(taking(Any, paths=("x",)), {"x": held}) == tuple(sorted(names))


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
def test_a_host_that_is_not_plainly_another_is_blocked(
    annotation: Any, value: Any, tmp_path: Path
) -> None:
    """If any host is blocked, so is a host that cannot be read from the arguments."""
    made = taking(annotation, hosts=("x",))
    blocked = permitted("bypassPermissions", blocked=("evil.example",))
    assert outcome(made, value, blocked, tmp_path) == "denied"
    assert outcome(made, value, permitted("bypassPermissions"), tmp_path) == "executed"


def test_a_host_that_cannot_be_read_is_told() -> None:
    """The model is told that it cannot be read; a rule for hosts neither allows nor ignores it."""
    made = taking(Any, hosts=("x",))
    odd = called(made, ["good.example", {"host": "evil.example"}])
    assert odd.hosts == ("good.example", "<the argument x: list>")
    decision = decided(odd, blocked=("other.example",))
    assert decision.behavior == "deny"
    assert "'<the argument x: list>' cannot be read" in decision.reason
    assert decided(odd, deny=("take(host:evil.example)",)).behavior == "ask"
    lists = {"ask": ("take(host:none.example)",), "allow": ("take(host:good.example)",)}
    assert decided(odd, **lists).behavior == "ask"


def test_addresses_are_hosts() -> None:
    """An address object of the standard library is read as a host."""
    made = taking(ipaddress.IPv4Address | HttpUrl, hosts=("x",))
    assert called(made, "10.0.0.1").hosts == ("10.0.0.1",)
    assert decided(called(made, "10.0.0.1"), blocked=("10.0.0.0/8",)).behavior == "deny"


def test_a_path_whose_own_code_fails_counts_as_outside() -> None:
    """A `__fspath__` that raises, or returns bytes, is not a path."""

    class Broken(os.PathLike[str]):
        def __fspath__(self) -> str:
            raise SystemExit

    class Bytes(os.PathLike[bytes]):
        def __fspath__(self) -> bytes:
            return b"inside.txt"

    made = taking(Any, paths=("x",))
    for value in (Broken(), Bytes()):
        question = ToolQuestion("a", "take", {})
        assert raw_paths(made, {"x": value}) == ()
        (path,) = call_of(made, question, {"x": value}, ()).paths
        assert not path.inside


def decided(call: Call, **lists: Any) -> Any:
    return decide(call, permitted(**lists))

"""Entry obstacles: why a replay cannot start an agent from its recording alone, and what to add to the test.

`why_not_callable` uses only the first line of a fixture, and imports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replay.comparison.alignment import safe


@dataclass(frozen=True, slots=True)
class NotCallable:
    """The reason why the recorded entry cannot be called, and the lines that call it in a test."""

    reason: str
    """A sentence without a final period, such as `agent:main was called with client (httpx2:Client), which ...`."""
    lines: tuple[str, str]
    """Two lines of Python for the test: an import and the call, with `...` for unknown parts."""


def why_not_callable(header: Mapping[str, Any]) -> NotCallable | None:
    """Return why a replay cannot call the recorded entry; None if the recording shows no obstacle.

    Args:
        header: the first line of a fixture (`Fixture.header`), or a mapping with the keys `entry`, `arguments` and
            `entry_obstacle`.
    """
    entry, obstacle = header.get("entry"), header.get("entry_obstacle") or {}
    if isinstance(entry, str) and header.get("arguments") is not None:
        return None
    kind = str(obstacle.get("kind", ""))
    module, _, name = entry.partition(":") if isinstance(entry, str) else ("", "", "")
    module = module or str(obstacle.get("module", ""))
    reason = _REASONS.get(kind, _unknown)(safe(f"{module}:{name}"), obstacle)
    names = [str(each) for each in obstacle.get("names", ())]
    return NotCallable(reason, _lines(kind, module, name, obstacle, names))


def _unknown(entry: str, obstacle: Mapping[str, Any]) -> str:
    del obstacle
    if entry == ":":
        return "the recording does not name the function that started the session"
    return f"the arguments of {entry} are not JSON values and were not recorded"


def _arguments(entry: str, obstacle: Mapping[str, Any]) -> str:
    lost = obstacle.get("lost")
    lost = lost if isinstance(lost, dict) else {}
    named = ", ".join(f"{safe(str(name))} ({safe(str(kind))})" for name, kind in lost.items())
    return f"{entry} was called with {named or 'values'}, which cannot be stored in a fixture"


def _constructor(entry: str, obstacle: Mapping[str, Any]) -> str:
    needs = ", ".join(safe(str(each)) for each in obstacle.get("needs", ()))
    return f"{entry} is a method of {safe(str(obstacle.get('class')))}, whose constructor needs {needs}"


def _nested(entry: str, obstacle: Mapping[str, Any]) -> str:
    outer = safe(str(obstacle.get("outer") or "another function"))
    module = entry.partition(":")[0]
    return f"the session was started by a function that is defined inside {module}:{outer}"


_REASONS: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "lambda": lambda entry, _: f"the session was started by a lambda of {entry.partition(':')[0]}",
    "nested": _nested,
    "notebook": lambda *_: (
        "the session was started in a cell of a notebook, which no test can import"
    ),
    "interactive": lambda *_: (
        "the session was started in an interpreter or by `python -c`, which no test can import"
    ),
    "import": lambda entry, _: (
        f"the session was started while {entry.partition(':')[0]} was imported"
    ),
    "arguments": _arguments,
    "constructor": _constructor,
    "view": lambda entry, o: (
        f"{entry} is a method of the view {safe(str(o.get('class')))}, which a web framework constructs for a request"
    ),
    "method": lambda entry, _: f"the first argument of {entry} was not an instance of its class",
    "locals": lambda entry, _: f"{entry} calls locals(), so its arguments were not read",
    "signature": lambda entry, _: f"the arguments of {entry} do not fit its signature",
    "outside": lambda *_: (
        "the requests were made outside of every session: decorate the function that starts the agent with "
        '@agentobs.session("name")'
    ),
    "spawned": lambda *_: (
        "the requests were made in a child process of multiprocessing, outside of every session: decorate the function "
        'that runs there with @agentobs.session("name"), or start the child with subprocess and '
        "agentobs.child_environment"
    ),
}


def _lines(
    kind: str, module: str, name: str, obstacle: Mapping[str, Any], names: list[str]
) -> tuple[str, str]:
    """Return an import and a call as source lines, which contain only identifiers from the recording."""
    parts = name.split(".") if name else []
    if not (_MODULE.fullmatch(module) and all(part.isidentifier() for part in parts)):
        module, parts = "", []
    arguments = ", ".join(f"{each}=..." for each in names if each.isidentifier())
    if kind == "import":
        return (
            f"import importlib, {module or 'my_agent'} as agent",
            "replay.run(importlib.reload, agent)",
        )
    if not parts:
        return (
            f"from {module or 'my_agent'} import my_function",
            f"replay.run(my_function{', ' * bool(arguments)}{arguments})",
        )
    call = ".".join(parts)
    if kind in ("constructor", "view", "method"):
        call = f"{'.'.join(parts[:-1])}({_constructor_arguments(obstacle)}).{parts[-1]}"
    return (
        f"from {module} import {parts[0]}",
        f"replay.run({call}{', ' * bool(arguments)}{arguments})",
    )


def _constructor_arguments(obstacle: Mapping[str, Any]) -> str:
    needs = [str(each) for each in obstacle.get("needs", ())]
    return ", ".join(f"{each}=..." for each in needs if each.isidentifier())


_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(?:\.[A-Za-z_]\w{0,99}){0,20}")

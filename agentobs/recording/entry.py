"""The entry of a session: the function that started it, its arguments, and where an exception came from."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

from agentobs.recording.origins import may_hold_variables
from agentobs.records.labels import Label, unchecked


def entry_of(frame: FrameType) -> tuple[str | None, dict[str, Any] | None]:
    """Return the function that a frame runs, as `module:name`, and its arguments where they are JSON."""
    code = frame.f_code
    name = name_of(str(frame.f_globals.get("__name__")), code.co_qualname, frame.f_globals)
    if name is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return name, None
    if may_hold_variables(code):
        return name, None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = {key: frame.f_locals[key] for key in names if key in frame.f_locals}
    return name, json_arguments(values)


def name_of(module: str, qualified: str, variables: Mapping[str, Any]) -> str | None:
    """Return a function as `module:qualified.name`, or None where nobody can import it by that.

    A script that is run is named by its file, so that a test can import it.
    """
    if "<" in qualified:
        return None
    if module == "__main__":
        spec, file = variables.get("__spec__"), variables.get("__file__")
        module = spec.name if spec else Path(file).stem if file else ""
    return f"{module}:{qualified}" if module else None


def json_arguments(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return arguments by name where they are JSON values that read back the same, else None."""
    try:
        parsed: dict[str, Any] = json.loads(json.dumps(dict(values)))
    except (TypeError, ValueError, RecursionError):
        return None
    return parsed if parsed == dict(values) else None


def origin(error: BaseException) -> str:
    """Return where an exception came from: its class, and the innermost function that is not a library's."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "site-packages" not in code.co_filename and "/agentobs/" not in code.co_filename:
            place = f"@{trace.tb_frame.f_globals.get('__name__')}:{code.co_name}"
        trace = trace.tb_next
    return type(error).__name__ + place


def called(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str | None, dict[str, Any] | None]:
    """Return the name and the arguments of a call; what cannot be told is None, and nothing raises."""
    inner = inspect.unwrap(function)
    name = name_of(
        str(getattr(inner, "__module__", "")),
        str(getattr(inner, "__qualname__", "<unknown>")),
        getattr(inner, "__globals__", {}),
    )
    try:
        return name, json_arguments(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return name, None


@functools.cache
def version_of(distribution: str) -> Label | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return unchecked(version(distribution))
    except PackageNotFoundError:
        return None

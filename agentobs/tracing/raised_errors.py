"""Raised errors: the class of an exception, and the line of the program's own code that raised it.

The message of an exception is content and is not read here. A class name is a label if the program or a library
declares the class: a module contains it under its qualified name. A path is a label if it only repeats the name of the
module that was imported from it. Any other class name or path may contain a text that a person wrote, so that the
recorder replaces it with a digest.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from agentobs.records.clear_text import class_label
from agentobs.records.exchanges import ErrorCause
from agentobs.records.labels import Label, constant_label, is_label, unchecked

SOURCE_FOLDERS = ("", "src/")
"""The folders of a project that usually contain the top-level modules; the second one is setuptools' `src` layout."""

TRACED_FRAMES_MAX = 10_000
"""The maximum number of frames of a traceback that are inspected. Our choice: ten times Python's recursion limit."""


def raised_error(error: BaseException) -> ErrorCause:
    """Return the class of an exception and the line of the program's own code that raised it.

    The line is in the innermost frame that is not in the standard library, an installed library or agentobs; None if
    there is no such frame.
    """
    name, file, line = class_of(error), None, None
    if frames := list(_own_frames(error)):
        frame, line = frames[-1]
        file = _path_of(frame)
    return ErrorCause("raised", name, file, line)


def origin(error: BaseException) -> str:
    """Return the origin of an exception: its class, and the innermost function of the program's own code."""
    place = ""
    for frame, _ in _own_frames(error):
        name = frame.f_code.co_name
        if not name.startswith("<"):  # use the function around a <genexpr> or <lambda>
            place = f"@{frame.f_globals.get('__name__')}:{name}"
    return type(error).__name__ + place


def class_of(error: BaseException) -> Label:
    """Return the name of an exception's class; it is a label only if a module contains the class under its name."""
    name = type(error).__name__
    return class_label(name) if _is_declared(type(error)) else unchecked(name)


def _is_declared(cls: type[BaseException]) -> bool:
    found: object = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is cls


def _own_frames(error: BaseException) -> Iterator[tuple[FrameType, int | None]]:
    """Yield the frames of the program's own code in a traceback with their lines, the innermost last."""
    trace = error.__traceback__
    for _ in range(TRACED_FRAMES_MAX):
        if trace is None:
            break
        if not _is_library(trace.tb_frame.f_code.co_filename):
            yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


@functools.lru_cache(maxsize=4096)
def _is_library(path: str) -> bool:
    if path.startswith("<"):
        return True  # code without a file, such as `<string>` or `<frozen importlib._bootstrap>`
    parts = Path(path).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return os.path.normpath(path).startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library and of agentobs, each with a trailing separator."""
    known = sysconfig.get_paths()
    own = Path(__file__).resolve().parent.parent
    packages = [own, *(own.parent / name for name in ("replay", "exporters", "dashboards"))]
    folders = [known["stdlib"], known["platstdlib"], *map(str, packages)]
    return tuple(os.path.normpath(each) + os.sep for each in folders)


def _path_of(frame: FrameType) -> Label:
    """Return the path of a frame's file relative to the project; a label if it only repeats the module's name."""
    path, module = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__", ""))
    candidates = [f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
    shown = _relative(path, candidates)
    is_imported = module != "__main__" and _file_of(module) == str(path)
    known = [f"{folder}{each}" for folder in SOURCE_FOLDERS for each in candidates]
    if is_imported and shown in known and is_label(shown):
        return constant_label(shown)
    return unchecked(shown)


def _relative(path: Path, candidates: list[str]) -> str:
    """Return a path relative to the current directory or to the root of its package, else only the file's name."""
    try:
        if path.is_relative_to(here := Path.cwd()):
            return path.relative_to(here).as_posix()
    except OSError:
        pass  # the current directory was deleted
    if not path.is_absolute():
        return path.as_posix()
    return next((each for each in candidates if path.as_posix().endswith(f"/{each}")), path.name)


def _file_of(module: str) -> str | None:
    found = getattr(sys.modules.get(module), "__file__", None)
    return found if isinstance(found, str) else None

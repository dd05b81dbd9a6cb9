"""Patches: `time`, `datetime`, `uuid` and `random` return values of the session, for code that cannot be changed.

    with agentobs.session("shop", patch=("time", "uuid", "random")):
        ...

This affects only calls inside such a session. Calls by the standard library, and by packages that connections, logs and
tests need (`UNPATCHED_PACKAGES`), get the real values, so timers, cookies, certificates and logs work as usual. The
monotonic clocks, `os.urandom`, `secrets` and objects of `random.Random` are never patched, because secret values and
running timers must not come from a recording. Names that a module has imported from these modules are replaced as well;
other references, such as default arguments, are not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import gc
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from types import FrameType, ModuleType
from typing import Any, get_args

from agentobs import tracing
from agentobs.errors import UsageError
from agentobs.records.exchanges import Place
from agentobs.runtime import current, process
from agentobs.tracing.ambient import Ambient, Patch, ambient_of

UNPATCHED_PACKAGES = frozenset(sys.stdlib_module_names) | {
    *("agentobs", "replay", "exporters", "dashboards"),
    *("anthropic", "httpx2", "httpcore2", "h11", "h2", "anyio", "sniffio", "certifi", "truststore"),
    *("aiohttp", "requests", "urllib3", "pydantic", "pydantic_core", "opentelemetry"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "syrupy", "hypothesis", "duckdb"),
}
"""Packages whose calls are not patched, because they need the real time, and their values never become part of a
request.
"""

_lock = threading.RLock()


class State:
    """The active patches of this process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """The number of users of each patch."""
        self.undo: dict[str, list[Callable[[], None]]] = {}
        """The functions that undo each patch; they are called in reverse order."""


def check_patch(patch: Collection[str]) -> frozenset[str]:
    """Return the names of the modules to patch.

    Raises:
        UsageError: a name is not `time`, `uuid` or `random`.
    """
    wrong = [patch] if isinstance(patch, str) else sorted(set(patch) - set(get_args(Patch)))
    if wrong:
        raise UsageError(
            f"{str(wrong[0])[:80]!r} cannot be patched",
            where="patch",
            todo=f"Use one or more of {', '.join(get_args(Patch))}, as in patch=('time',)",
        )
    return frozenset(patch)


@contextlib.contextmanager
def patched(patch: Collection[str]) -> Iterator[None]:
    """Patch modules of the standard library while the context is open."""
    with contextlib.ExitStack() as stack:
        for name in sorted(patch):
            hold(name)
            stack.callback(release, name)
        yield


def hold(name: str) -> None:
    """Patch a module, until `release` was called as many times as `hold`."""
    state = process.state(State)
    with _lock:
        state.counts[name] += 1
        if state.counts[name] == 1:
            state.undo[name] = []
            try:
                _PATCHES[name](state.undo[name])
            except BaseException:
                release(name)
                raise


def release(name: str) -> None:
    """Undo one `hold`."""
    state = process.state(State)
    with _lock:
        state.counts[name] -= 1
        if state.counts[name] == 0:
            for each in reversed(state.undo.pop(name)):
                each()


def _value_source(kind: str, frame: FrameType) -> tuple[Ambient, Place] | None:
    """Return the source of values for a caller, and its place; None if the caller gets the real value."""
    if current().read_observer is not None or _is_unpatched(frame):
        return None
    here = tracing.place()
    ambient = ambient_of(here.session_id) if here is not None else None
    if here is None or ambient is None or kind not in ambient.patch:
        return None
    return ambient, here


def _is_unpatched(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in UNPATCHED_PACKAGES


def _wrapped(
    kind: str, original: Callable[..., Any], answer: Callable[..., Any], *, now_only: bool = False
) -> Callable[..., Any]:
    """Return a replacement for a function: it returns `answer(ambient, place, *args)` for calls that are patched.

    If `now_only` is set, calls with a time as their last argument are not patched.
    """
    name = str(getattr(original, "__name__", kind))

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        source = None if now_only and _has_time_argument(name, args) else _value_source(kind, frame)
        if source is not None:
            return answer(*source, *args, **kwargs)
        value = original(*args, **kwargs)
        observer = current().read_observer
        if observer is not None and not _is_unpatched(frame):
            observer(name, value, frame)
        return value

    return call


def _has_time_argument(name: str, args: tuple[Any, ...]) -> bool:
    return len(args) > (1 if name == "strftime" else 0) and args[-1] is not None


def _replace(
    undo: list[Callable[[], None]], module: ModuleType, replacements: dict[str, Any]
) -> None:
    """Replace functions of a module, including the names under which other modules have imported them."""
    by_original_id = {id(getattr(module, name)): new for name, new in replacements.items()}
    places = [module, *(each for each in list(sys.modules.values()) if _may_be_patched(each))]
    for each in places:
        for name, value in list(vars(each).items()):
            if id(value) in by_original_id and value is not module:
                setattr(each, name, by_original_id[id(value)])
                undo.append(functools.partial(setattr, each, name, value))


def _may_be_patched(module: Any) -> bool:
    """Return whether names that a module has imported may be replaced."""
    if not isinstance(module, ModuleType):
        return False
    return module.__name__.partition(".")[0] not in UNPATCHED_PACKAGES


# time


def _seconds(ambient: Ambient, here: Place) -> float:
    return ambient.now_ns(here) / 1e9


def _local(ambient: Ambient, here: Place, *_: Any) -> time.struct_time:
    """Return the recorded local time, like `time.localtime`."""
    utc = time.gmtime(ambient.now_ns(here) // 10**9 + ambient.utc_offset_s)
    hours, minutes = divmod(abs(ambient.utc_offset_s) // 60, 60)
    zone = f"{'-' if ambient.utc_offset_s < 0 else '+'}{hours:02}{minutes:02}"
    return time.struct_time((*utc[:9], zone, ambient.utc_offset_s))


def _patch_time(undo: list[Callable[[], None]]) -> None:
    gmtime, asctime, strftime = time.gmtime, time.asctime, time.strftime

    def formatted(ambient: Ambient, here: Place, text: str, *_: Any) -> str:
        return strftime(text, _local(ambient, here))

    def written(ambient: Ambient, here: Place, *_: Any) -> str:
        return asctime(_local(ambient, here))

    def utc(ambient: Ambient, here: Place, *_: Any) -> time.struct_time:
        return gmtime(ambient.now_ns(here) // 10**9)

    wrap = functools.partial(_wrapped, "time")
    replacements = {
        "time": wrap(time.time, _seconds),
        "time_ns": wrap(time.time_ns, Ambient.now_ns),
        "localtime": wrap(time.localtime, _local, now_only=True),
        "gmtime": wrap(gmtime, utc, now_only=True),
        "ctime": wrap(time.ctime, written, now_only=True),
        "asctime": wrap(asctime, written, now_only=True),
        "strftime": wrap(strftime, formatted, now_only=True),
    }
    _replace(undo, time, replacements)
    _patch_datetime(undo)


def _patch_datetime(undo: list[Callable[[], None]]) -> None:
    """Replace the class methods that read the clock, in the class itself, so that its identity and instances remain.

    Raises:
        UsageError: this interpreter does not allow it.
    """
    answers = {
        (datetime.datetime, "now"): _now,
        (datetime.datetime, "utcnow"): _utcnow,
        (datetime.date, "today"): _today,
    }
    for (cls, name), answer in answers.items():
        methods = gc.get_referents(cls.__dict__)[0]
        original = methods[name]
        methods[name] = new = classmethod(_patched_method(original, answer))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
        undo.append(functools.partial(_restore, cls, name, original))
        if cls.__dict__[name] is not new:
            raise UsageError(
                f"this interpreter does not allow agentobs to replace {cls.__name__}.{name}",
                where="patch",
                todo="Remove 'time', and call agentobs.world_here().now() instead",
            )


def _patched_method(original: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        source = _value_source("time", frame)
        if source is not None:
            return answer(*source, cls, *args, **kwargs)
        value = original.__get__(None, cls)(*args, **kwargs)
        observer = current().read_observer
        if observer is not None and not _is_unpatched(frame):
            observer(f"{cls.__name__}.{original.__name__}", value, frame)
        return value

    return call


def _restore(cls: type, name: str, original: Any) -> None:
    gc.get_referents(cls.__dict__)[0][name] = original
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _utc(ambient: Ambient, here: Place) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(microseconds=ambient.now_ns(here) // 1000)


def _now(ambient: Ambient, here: Place, cls: Any, tz: datetime.tzinfo | None = None) -> Any:
    utc = _utc(ambient, here)
    if tz is None:
        return _naive(cls, utc + datetime.timedelta(seconds=ambient.utc_offset_s))
    there = utc.astimezone(tz)
    return _naive(cls, there).replace(tzinfo=there.tzinfo, fold=there.fold)


def _utcnow(ambient: Ambient, here: Place, cls: Any) -> Any:
    return _naive(cls, _utc(ambient, here))


def _today(ambient: Ambient, here: Place, cls: Any) -> Any:
    if issubclass(cls, datetime.datetime):
        return _now(ambient, here, cls)
    local = _utc(ambient, here) + datetime.timedelta(seconds=ambient.utc_offset_s)
    return cls(local.year, local.month, local.day)


def _naive(cls: Any, at: datetime.datetime) -> Any:
    return cls(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond)


# uuid and random


def _patch_uuid(undo: list[Callable[[], None]]) -> None:
    def answer(version: int) -> Callable[..., uuid.UUID]:
        def draw(ambient: Ambient, here: Place, *_: Any, **__: Any) -> uuid.UUID:
            return uuid.UUID(int=ambient.stream(here, "uuid").getrandbits(128), version=version)

        return draw

    replacements = {
        f"uuid{version}": _wrapped("uuid", found, answer(version if version < 6 else 4))
        for version in (1, 4, 6, 7)
        if (found := getattr(uuid, f"uuid{version}", None)) is not None
    }
    _replace(undo, uuid, replacements)


def _patch_random(undo: list[Callable[[], None]]) -> None:
    """Replace the functions of the module, including `seed`, but not the methods of `random.Random` objects."""

    def answer(name: str) -> Callable[..., Any]:
        def draw(ambient: Ambient, here: Place, *args: Any, **kwargs: Any) -> Any:
            return getattr(ambient.stream(here, "random"), name)(*args, **kwargs)

        return draw

    shared = getattr(random, "_inst", None)
    names = [n for n, f in vars(random).items() if getattr(f, "__self__", None) is shared and f]
    replacements = {name: _wrapped("random", getattr(random, name), answer(name)) for name in names}
    _replace(undo, random, replacements)


_PATCHES: dict[str, Callable[[list[Callable[[], None]]], None]] = {
    "time": _patch_time,
    "uuid": _patch_uuid,
    "random": _patch_random,
}

"""Shifting the wall clock of a whole process by a number of seconds.

Monotonic clocks are not shifted, so timers and deadlines keep working. Compiled libraries that read the clock directly
also see the real time.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import time
from collections.abc import Callable
from typing import Any


class _Call:
    """A callable that replaces a built-in function. Like the original, it does not become a method in a class."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self.__name__ = function, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


def shift_clock(seconds: int) -> None:
    """Shift the wall clock of this process permanently; call it before other modules import from `time`."""
    now = _shift_time(seconds)
    _shift_datetime(now)


def _shift_time(seconds: int) -> Callable[[], float]:
    """Replace the functions of `time` that read the wall clock; return the shifted `time.time`."""
    real, real_ns = time.time, time.time_ns
    localtime, gmtime, asctime, strftime = time.localtime, time.gmtime, time.asctime, time.strftime
    real_ctime = time.ctime

    def now() -> float:
        return real() + seconds

    def now_ns() -> int:
        return real_ns() + seconds * 10**9

    def local(at: float | None = None) -> time.struct_time:
        return localtime(now() if at is None else at)

    def utc(at: float | None = None) -> time.struct_time:
        return gmtime(now() if at is None else at)

    def ctime(at: float | None = None) -> str:
        return real_ctime(now() if at is None else at)

    def shifted_asctime(at: Any = None) -> str:
        return asctime(local() if at is None else at)

    def shifted_strftime(text: str, at: Any = None) -> str:
        return strftime(text, local() if at is None else at)

    replacements: dict[str, Callable[..., Any]] = {
        "time": now,
        "time_ns": now_ns,
        "localtime": local,
        "gmtime": utc,
        "ctime": ctime,
        "asctime": shifted_asctime,
        "strftime": shifted_strftime,
    }
    for name, function in replacements.items():
        setattr(time, name, _Call(function, name))
    _shift_gettime(seconds)
    return now


def _shift_gettime(seconds: int) -> None:
    """Shift `time.clock_gettime` and `clock_gettime_ns` for the wall clock, on platforms that have them."""
    if not hasattr(time, "clock_gettime"):
        return
    for name, unit in (("clock_gettime", 1), ("clock_gettime_ns", 10**9)):
        real = getattr(time, name)

        def read(clock: int, real: Any = real, ahead: int = seconds * unit) -> Any:
            return real(clock) + (ahead if clock == time.CLOCK_REALTIME else 0)

        setattr(time, name, _Call(read, name))


def _shift_datetime(now: Callable[[], float]) -> None:
    """Replace the methods of the classes `datetime` and `date` that read the clock.

    The methods are replaced in the dictionaries of the built-in classes, so that code that has imported a class also
    uses them.
    """

    def datetime_now(cls: Any, tz: Any = None) -> Any:
        return cls.fromtimestamp(now(), tz)

    def utcnow(cls: Any) -> Any:
        return cls.fromtimestamp(now(), datetime.UTC).replace(tzinfo=None)

    def today(cls: Any) -> Any:
        return cls.fromtimestamp(now())

    for owner, name, function in (
        (datetime.datetime, "now", datetime_now),
        (datetime.datetime, "utcnow", utcnow),
        (datetime.date, "today", today),
    ):
        gc.get_referents(owner.__dict__)[0][name] = classmethod(function)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

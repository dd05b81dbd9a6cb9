"""The seam to everything outside: time, ids, chance, environment, tools and the provider.

This is the only module that reads a clock, makes an id, rolls dice or looks at the environment. The
agent loop gets a `World`; a replay hands it another one with the same shape, and no code can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random as _random
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentobs.records.exchanges import ToolAnswer, ToolQuestion

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic


def now() -> int:
    """Return the wall clock in nanoseconds since 1970 (UTC)."""
    return time.time_ns()


def monotonic() -> int:
    """Return a clock in nanoseconds that never goes back; only differences mean something."""
    return time.monotonic_ns()


def new_id() -> str:
    """Return a new id: 32 hex digits, the first 12 the millisecond (UUIDv7, RFC 9562 section 5.7).

    It has the form of an OpenTelemetry trace id; its last 16 digits are random and serve as a span id.
    """
    high = (now() // 1_000_000) << 16 | 0x7000 | secrets.randbits(12)
    low = 0x8000_0000_0000_0000 | secrets.randbits(62)
    return f"{high:016x}{low:016x}"


def pause(seconds: float) -> None:
    """Wait so many seconds in this thread."""
    time.sleep(seconds)


def chance() -> float:
    """Return a number in [0, 1) for jitter and sampling."""
    return _random.random()


def random_bytes(count: int) -> bytes:
    """Return so many random bytes, fit for a key."""
    return secrets.token_bytes(count)


def environ(name: str) -> str | None:
    """Return an environment variable, or None where it is unset or empty."""
    return os.environ.get(name) or None


@contextlib.contextmanager
def lent_environ(name: str, value: str) -> Iterator[None]:
    """Set an environment variable where it is unset, for as long as the context is open."""
    if environ(name) is not None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def process_id() -> int:
    """Return the id of this process."""
    return os.getpid()


def platform() -> str:
    """Return the platform as a label, such as `linux`."""
    return sys.platform


def python_version() -> str:
    """Return the interpreter's version, such as `3.11.7`."""
    return sys.version.split()[0]


@dataclass(frozen=True, slots=True)
class World:
    """What an agent may ask of the outside, as one frozen bundle of plain callables."""

    client: AsyncAnthropic
    """The provider's client; its transport is where questions to the model are recorded."""
    run_tool: Callable[[ToolQuestion], Awaitable[ToolAnswer]]
    """Run one tool call and return its answer; never raises for a failing tool."""
    now: Callable[[], int] = now
    """Wall clock, nanoseconds since 1970."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Wait so many seconds."""
    new_id: Callable[[], str] = new_id
    """A new id of 32 hex digits."""
    random: Callable[[], float] = chance
    """A number in [0, 1)."""


_transform: Callable[[World], World] | None = None


@contextlib.contextmanager
def transformed(transform: Callable[[World], World]) -> Iterator[None]:
    """Give everyone who asks for the live world another one, for as long as the context is open."""
    global _transform
    before, _transform = _transform, transform
    try:
        yield
    finally:
        _transform = before


def in_force(live: World) -> World:
    """Return the world that stands for a live one: itself, or what `transformed` makes of it."""
    return live if _transform is None else _transform(live)

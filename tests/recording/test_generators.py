"""Decorated generators and lazy proxies: which values are recorded, and that no object is kept or evaluated."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.determinism.return_values import RETURNED_BYTES, ReturnedItems, returned
from agentobs.determinism.values import is_not_kept, not_kept_in
from tests.recording.test_wire import home, recorded

__all__ = ["home"]


class Frame:
    """A value that an agent yields."""


@pytest.fixture
def refs() -> Iterator[list[weakref.ref[Frame]]]:
    """Weak references to all frames that were created; the garbage collector is disabled."""
    gc.collect()
    gc.disable()
    try:
        yield []
    finally:
        gc.enable()


def alive(refs: list[weakref.ref[Frame]]) -> int:
    return sum(ref() is not None for ref in refs)


def made(refs: list[weakref.ref[Frame]]) -> Frame:
    frame = Frame()
    refs.append(weakref.ref(frame))
    return frame


def frames_of(refs: list[weakref.ref[Frame]]) -> Callable[[], Iterator[Frame]]:
    @agentobs.session("frames")
    def frames() -> Iterator[Frame]:
        for _ in range(5):
            yield made(refs)

    return frames


def async_frames_of(refs: list[weakref.ref[Frame]]) -> Callable[[], AsyncIterator[Frame]]:
    @agentobs.session("frames")
    async def frames() -> AsyncIterator[Frame]:
        for _ in range(5):
            yield made(refs)

    return frames


def test_no_yielded_object_is_kept(home: Path, refs: list[weakref.ref[Frame]]) -> None:
    """Each yielded object is freed as soon as its consumer releases it."""
    for frame in frames_of(refs)():
        assert alive(refs) == 1
        del frame
        assert alive(refs) == 0
    assert len(refs) == 5

    async def consume() -> None:
        async for frame in async_frames_of(refs)():
            del frame
            assert alive(refs) == 0

    asyncio.run(consume())
    assert len(refs) == 10


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "thrown into", "left"])
def test_no_reference_cycle_is_left(home: Path, refs: list[weakref.ref[Frame]], how: str) -> None:
    """However a generator ends, its objects are freed without the garbage collector."""

    @agentobs.session("holding")
    def holding() -> Iterator[int]:
        held = made(refs)
        yield id(held)
        if how == "raises":
            raise LookupError("no such frame")
        yield 2

    def consume() -> None:
        iteration = holding()
        next(iteration)
        if how == "left":
            iteration.close()  # type: ignore[attr-defined]  # a generator
            return
        with pytest.raises(LookupError):
            if how == "thrown into":
                iteration.throw(LookupError("stop"))  # type: ignore[attr-defined]
            next(iteration)

    consume()
    assert len(refs) == 1
    assert alive(refs) == 0


@pytest.mark.parametrize("how", ["raises", "thrown into"])
def test_no_reference_cycle_is_left_by_an_async_generator(
    home: Path, refs: list[weakref.ref[Frame]], how: str
) -> None:
    """However an async generator ends, its objects are freed without the garbage collector."""

    @agentobs.session("holding")
    async def holding() -> AsyncIterator[int]:
        held = made(refs)
        yield id(held)
        raise LookupError("no such frame")

    async def consume() -> None:
        iteration: Any = holding()
        await anext(iteration)
        try:
            await (iteration.athrow(LookupError("stop")) if how != "raises" else anext(iteration))
        except LookupError:
            return
        raise AssertionError("nothing was raised")

    asyncio.run(consume())
    assert len(refs) == 1
    assert alive(refs) == 0


def test_yielded_values_are_the_result(home: Path) -> None:
    """Each yielded value is recorded as it was when it was yielded; for an object that is not JSON, only its type is
    recorded.
    """

    @agentobs.session("steps")
    def steps() -> Iterator[Any]:
        step = {"number": 1}
        yield step
        step["number"] = 2
        yield step
        yield Frame()

    list(steps())
    [session] = recorded(home)
    assert session.result is not None
    *first, last = session.result.value
    assert first == [{"number": 1}, {"number": 2}]
    assert is_not_kept(last)


def test_all_yielded_values_share_one_limit() -> None:
    """All yielded values of a session share one size limit; if they exceed it, none of them is kept."""
    items = ReturnedItems()
    for _ in range(3):
        items.add("x" * (RETURNED_BYTES // 4))
    assert len(items.all().value) == 3
    for _ in range(2):
        items.add("x" * (RETURNED_BYTES // 4))
    assert not_kept_in(items.all().value) == "builtins:list, too large"
    items.add("small")
    assert not_kept_in(items.all().value) == "builtins:list, too large"
    many = ReturnedItems()
    for number in range(RETURNED_BYTES):
        many.add(number)
    assert not_kept_in(many.all().value) == "builtins:list, too large"


class Lazy:
    """An object that evaluates itself when its class is read, like the lazy proxies of web frameworks."""

    evaluated = 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        Lazy.evaluated += 1
        return dict


@pytest.mark.parametrize("make", [Lazy, lambda: {"rows": [Lazy()]}, lambda: (Lazy(), 1)])
def test_no_code_of_a_lazy_proxy_runs(make: Callable[[], Any]) -> None:
    """The class of a lazy proxy is recorded without running any of its code."""
    before = Lazy.evaluated
    assert "Lazy" in str(returned(make()).value)
    items = ReturnedItems()
    items.add(make())
    assert "Lazy" in str(items.all().value)
    assert Lazy.evaluated == before

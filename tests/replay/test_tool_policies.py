"""Policies of tools, values of recorded functions, and nested replays."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import os
import pickle
import subprocess
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pydantic
import pytest
from anthropic import Anthropic, beta_tool

import agentobs
from agentobs.cli.replay.tool_choice import policy
from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Answer, Chunk
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from tests.provider_script import call, script, text
from tests.replay.agents import KEY, MODEL, frozen, recorded


def unstreamed(*content: dict[str, Any], number: int = 1) -> Answer:
    """Return a response without streaming."""
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    message = {
        **{"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL},
        **{"content": list(content), "stop_reason": stop, "stop_sequence": None},
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    data = json.dumps(message).encode()
    return Answer(200, {"content-type": "application/json"}, (Chunk(data, 0),), "complete")


class Shop:
    """A third-party agent that calls its functions itself and renders their results."""

    def __init__(self, url: str | None = None, **tools: Callable[..., Any]) -> None:
        self.client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        self.tools = tools
        self.seen: list[Any] = []

    def run(self, prompt: str = "Go.") -> str:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        with agentobs.session("shop"):
            while True:
                answer = self.client.messages.create(model=MODEL, max_tokens=9, messages=messages)
                uses = [block for block in answer.content if block.type == "tool_use"]
                if not uses:
                    return "".join(block.text for block in answer.content if block.type == "text")
                results = [self.result(use) for use in uses]
                blocks = [block.to_dict() for block in answer.content]
                messages += [{"role": "assistant", "content": blocks}]
                messages += [{"role": "user", "content": results}]

    def result(self, use: Any) -> dict[str, Any]:
        try:
            value = self.tools[use.name](**use.input)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
        except Exception as error:
            value = error
        self.seen.append(value)
        content = (
            f"{type(value).__name__}: {value}" if isinstance(value, Exception) else repr(value)
        )
        return {"type": "tool_result", "tool_use_id": use.id, "content": content}


async def _awaited(value: Any) -> Any:
    return await value


def recorded_shop(
    tmp_path: Path, responses: list[Answer], **tools: Callable[..., Any]
) -> tuple[Fixture, Shop]:
    """Record and freeze one run of the shop."""
    shops: list[Shop] = []

    def run(url: str) -> None:
        shops.append(Shop(url, **tools))
        shops[0].run()

    return frozen(tmp_path, recorded(tmp_path, run, responses), "shop"), shops[0]


def calls(*names: str, **arguments: Any) -> list[Answer]:
    """Return a turn that calls these tools, and a final turn."""
    uses = [call(number, name, **arguments) for number, name in enumerate(names, 1)]
    return [unstreamed(*uses), unstreamed(text("Done."), number=2)]


def replays(fixture: Fixture, shop: Shop, **options: Any) -> Replayer:
    """Replay a fixture completely with another shop."""
    with Replayer(fixture, ReplayOptions(**options)) as replayed:
        assert replayed.run(shop.run) == "Done."
    return replayed


def divergence_of(fixture: Fixture, shop: Shop, **options: Any) -> str:
    with pytest.raises(DivergenceError) as raised, Replayer(fixture, ReplayOptions(**options)) as r:
        r.run(shop.run)
    assert raised.value.divergence.kind == "tool"
    return raised.value.divergence.text()


class Counted:
    """A recorded tool that counts its runs."""

    def __init__(self, result: Any = "41.90", **options: Any) -> None:
        self.runs: list[str] = []
        self.result = result

        def price(item: str) -> Any:
            """Return the price."""
            self.runs.append(item)
            return self.result

        self.tool = agentobs.record_tool(**options)(price)


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session that called `price` once, and once `pay`, which has side effects."""
    tmp = tmp_path_factory.mktemp("priced")
    pay = Counted("paid", name="pay", mutating=True)
    responses = calls("price", "pay", item="tea")
    fixture, shop = recorded_shop(tmp, responses, price=Counted().tool, pay=pay.tool)
    assert shop.seen == ["41.90", "paid"]
    return fixture


@pytest.mark.slow
def test_policies_of_recorded_functions(priced: Fixture) -> None:
    """`replay` does not run a function, and `execute` and `verify` do; a tool with side effects runs only if it is
    named.
    """
    runs: dict[str, tuple[int, int]] = {}
    policies: dict[str, Any] = {
        "default": "recorded",
        "live": "live",
        "others": {"*": "execute"},
        "verify": {"*": "verify"},
        "names": ["price"],
        "named": {"pay": "execute"},
        "but": {"*": "execute", "price": "replay"},
    }
    for word, chosen in policies.items():
        price, pay = Counted(), Counted("paid", name="pay", mutating=True)
        replayed = replays(priced, Shop(price=price.tool, pay=pay.tool), tools=chosen)
        runs[word] = len(price.runs), len(pay.runs)
        assert replayed.progress.tools_matched == replayed.progress.tools == 2
    assert runs == {
        "default": (0, 0),
        "live": (1, 0),
        "others": (1, 0),
        "verify": (1, 0),
        "names": (1, 0),
        "named": (0, 1),
        "but": (0, 0),
    }


def test_arguments_are_compared(priced: Fixture) -> None:
    """If the agent passes a different argument than the model requested, the report shows both, and no function
    runs.
    """
    price, pay = Counted(), Counted("paid", name="pay", mutating=True)
    shop = Shop(price=lambda item: price.tool(item=item.upper()), pay=pay.tool)
    report = divergence_of(priced, shop)
    assert '"tea"' in report
    assert '"TEA"' in report
    assert price.runs == pay.runs == []


def test_verify_compares_the_result(priced: Fixture) -> None:
    """With `verify`, a function that returns a different result is reported with both results."""
    price, pay = Counted("41.9"), Counted("paid", name="pay", mutating=True)
    report = divergence_of(priced, Shop(price=price.tool, pay=pay.tool), tools={"price": "verify"})
    assert "ran live, and its result differs from the recorded one" in report
    assert '"41.90"' in report
    assert price.runs == ["tea"]
    # With `execute`, the next request shows the difference.
    live = ReplayOptions(tools=["price"])
    with pytest.raises(DivergenceError, match="ran live"), Replayer(priced, live) as replayed:
        replayed.run(Shop(price=price.tool, pay=pay.tool).run)


def test_a_missing_call_fails(priced: Fixture) -> None:
    """An agent that sends the recorded result without calling its function diverges."""
    shop = Shop(price=lambda item: "41.90", pay=Counted("paid", name="pay", mutating=True).tool)
    with pytest.raises(
        DivergenceError,
        match=r"price .toolu_1. was called in the recording, but not in this replay",
    ):
        with Replayer(priced) as replayed:
            replayed.run(shop.run)


def test_an_unknown_policy_is_rejected() -> None:
    """An unknown policy is rejected with an error that lists the valid policies."""
    with pytest.raises(UsageError, match=r"'run'.* execute, replay, verify"):
        ReplayOptions(tools={"price": "run"})


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    number: int
    colors: tuple[Color, ...]
    note: bytes = b""


class Invoice(pydantic.BaseModel):
    total: decimal.Decimal
    order: Order
    due: datetime.date


class OutOfStock(Exception):
    """An exception with two arguments and its own text."""

    def __init__(self, item: str, remaining: int) -> None:
        super().__init__(item, remaining)
        self.item, self.remaining = item, remaining

    def __str__(self) -> str:
        return f"{self.remaining} of {self.item} left"


VALUES: dict[str, Any] = {
    "text": "é\u0000\ud800",
    "bytes": b"\xff\x00plain",
    "utf8": b"caf\xc3\xa9",
    "nothing": None,
    "numbers": [0, -1, 2**70, 0.1, -0.0, 1e300, True, 3 + 4j],
    "nested": {"a": [{"b": (1, (2,))}], "$py": "mine"},
    "keys": {1: "a", (2, 3): None},
    "sets": [{1, 2}, frozenset({"x"}), set()],
    "times": [
        datetime.datetime(2026, 2, 3, 4, 5, 6, 7, datetime.UTC),
        datetime.date(2026, 1, 1),
        datetime.time(1, 2),
        datetime.timedelta(days=-1, microseconds=3),
    ],
    "others": [uuid.UUID(int=5), decimal.Decimal("1.10"), Path("/x/y"), bytearray(b"z")],
    "dataclass": Order(3, (Color.RED,), b"\xfe"),
    "model": Invoice(
        total=decimal.Decimal("9.50"), order=Order(1, ()), due=datetime.date(2026, 3, 1)
    ),
    "infinite": [float("inf"), float("-inf")],
}


def test_values_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded bytes, builtins and registered dataclasses, models and enums are restored exactly, without pickle."""

    def must_not_pickle(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was used")

    for name in ("loads", "load", "dumps", "dump"):
        monkeypatch.setattr(pickle, name, must_not_pickle)

    def value(of: str) -> Any:
        return VALUES[of]

    tool = agentobs.record_tool(returns=(Order, Invoice, Color))(value)
    uses = [call(number, "value", of=name) for number, name in enumerate(VALUES, 1)]
    fixture, _ = recorded_shop(
        tmp_path, [unstreamed(*uses), unstreamed(text("Done."), number=2)], value=tool
    )

    def must_not_run(of: str) -> Any:
        raise AssertionError("it ran")

    replaying = Shop(value=agentobs.record_tool(name="value")(must_not_run))
    replays(fixture, replaying)
    for name, seen in zip(VALUES, replaying.seen, strict=True):
        assert seen == VALUES[name], name
        assert repr(seen) == repr(VALUES[name]), name
        assert type(seen) is type(VALUES[name]), name


ERRORS: dict[str, Exception] = {
    "builtin": ValueError("no such tea", 3),
    "key": KeyError("x"),
    "os": FileNotFoundError(2, "No such file or directory", "tea.txt"),
    "near": OutOfStock("tea", 0),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
}


def test_an_exception_of_a_tool_is_restored(tmp_path: Path) -> None:
    """A builtin exception, or an exception of the tool's module, is restored with its class, text and arguments."""

    unraised = dict(ERRORS)

    def fails(of: str) -> Any:
        raise unraised[of]

    async def fails_later(of: str) -> Any:
        await asyncio.sleep(0)
        raise unraised[of]

    uses = [call(n, "fails", of=each) for n, each in enumerate(ERRORS, 1)]
    uses += [call(n, "fails_later", of=each) for n, each in enumerate(ERRORS, 20)]
    tools: dict[str, Any] = {f.__name__: agentobs.record_tool(f) for f in (fails, fails_later)}
    fixture, live = recorded_shop(
        tmp_path, [unstreamed(*uses), unstreamed(text("Done."), number=2)], **tools
    )
    replaying = Shop(**tools)
    unraised.clear()
    replays(fixture, replaying)
    assert len(replaying.seen) == 10
    for seen, was in zip(replaying.seen, live.seen, strict=True):
        assert (type(seen), str(seen), seen.args) == (type(was), str(was), was.args)
    assert isinstance(replaying.seen[2], FileNotFoundError)
    assert replaying.seen[2].filename == "tea.txt"


def test_an_unknown_exception_names_its_class(tmp_path: Path) -> None:
    """An exception whose class cannot be found is restored as a `ToolFailed` that names the class and has the same
    text.
    """

    def fails() -> None:
        class Hidden(Exception):
            pass

        raise Hidden("deep")

    tool = agentobs.record_tool(fails)
    shop = Shop(fails=tool)
    responses = calls("fails")
    fixture, _ = recorded_shop(tmp_path, responses, fails=tool)
    with pytest.raises(DivergenceError), Replayer(fixture) as replayed:
        replayed.run(shop.run)
    [error] = shop.seen
    assert isinstance(error, agentobs.ToolFailed)
    assert str(error).endswith("Hidden: deep")


@pytest.mark.slow
def test_a_value_that_was_not_recorded_is_reported(tmp_path: Path) -> None:
    """If a result was recorded only by its type, the replay diverges and explains how to run the tool live."""

    class Handle:
        def __repr__(self) -> str:
            return "a handle"

    tool = agentobs.record_tool(name="open_file")(lambda: Handle())
    fixture, _ = recorded_shop(tmp_path, calls("open_file"), open_file=tool)
    report = divergence_of(fixture, Shop(open_file=tool))
    assert "open_file" in report
    assert "Handle" in report
    assert "{'open_file': 'execute'}" in report
    replays(fixture, Shop(open_file=tool), tools={"open_file": "execute"})
    assert "a handle" not in fixture.path.read_text().partition('"request": 2')[0]


def test_invalid_functions_are_rejected() -> None:
    """Generators, classes and tool objects are rejected when they are decorated."""

    def generator() -> Any:
        yield 1

    async def asynchronous() -> Any:
        yield 1

    for wrong in (generator, asynchronous, Order, staticmethod(len), "name", beta_tool(lookup)):
        with pytest.raises(UsageError, match="cannot be recorded as a tool"):
            agentobs.record_tool(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a dataclass"):
        agentobs.register_type(Path)


def lookup(order_id: str, deep: bool = False) -> str:
    """Look an order up.

    Args:
        order_id: the order.
    """
    return f"{order_id} {deep}"


def test_a_recorded_function_keeps_its_signature() -> None:
    """A recorded function keeps its name, signature, docstring and types, so `beta_tool` derives the same schema."""
    tool = agentobs.record_tool(lookup)
    assert inspect.signature(tool) == inspect.signature(lookup)
    assert (tool.__name__, tool.__doc__) == (lookup.__name__, lookup.__doc__)
    assert beta_tool(tool).to_dict() == beta_tool(lookup).to_dict()
    assert tool("7") == "7 False"
    assert not inspect.iscoroutinefunction(tool)


def test_policies_on_the_command_line(priced: Fixture) -> None:
    """`--tools` accepts names, or names with policies, and the error for an unknown tool lists the recorded tools."""
    assert policy("price", priced) == {"price"}
    assert policy("price=verify,*=replay", priced) == {"price": "verify", "*": "replay"}
    assert policy("pay,price=replay", priced) == {"pay": "execute", "price": "replay"}
    with pytest.raises(UsageError) as raised:
        policy("pony=verify", priced)
    assert str(raised.value) == (
        "--tools: the recording contains no calls of pony. "
        "The recorded tools are: pay, price; you can also pass recorded or live."
    )


def test_replays_that_end_out_of_order_restore_everything(priced: Fixture) -> None:
    """If an outer replay ends before its inner replay, tools stay replayed until both have ended, and then run live."""
    paid = Counted("paid live", name="pay", mutating=True)
    shop, popen, environ = Shop(pay=paid.tool), subprocess.Popen.__init__, dict(os.environ)
    outer, inner = Replayer(priced), Replayer(priced)
    outer.__enter__()
    inner.__enter__()
    outer.stop()
    assert inner.run(Shop(price=Counted().tool, pay=paid.tool).run) == "Done."
    assert paid.runs == []
    inner.stop()
    responses = calls("pay", item="coffee")
    with ServedProvider(script(*responses), ServeOptions(match="order")) as provider:
        shop.client.base_url = provider.url
        assert shop.run() == "Done."
    assert (paid.runs, shop.seen) == (["coffee"], ["paid live"])
    assert subprocess.Popen.__init__ is popen
    assert dict(os.environ) == environ


def test_a_nested_replay_uses_its_own_recording(priced: Fixture) -> None:
    """A nested replay responds until it ends, and then the outer replay responds, also inside an event loop."""

    async def inside() -> str:
        with Replayer(priced) as inner:
            return str(await inner.arun(asyncio.to_thread, shop.run))

    shop = Shop(price=Counted("x").tool, pay=Counted("y", name="pay", mutating=True).tool)
    with Replayer(priced) as outer:
        assert asyncio.run(inside()) == "Done."
        assert outer.progress.requests_matched == 0
        assert outer.run(shop.run) == "Done."


def test_concurrent_replays_are_rejected(priced: Fixture) -> None:
    """Opening a second replay in another thread or task, or one replay twice, is an error, and the open replay
    continues.
    """

    def opens() -> None:
        with Replayer(priced):
            raise AssertionError("it is open")

    async def tasks() -> list[BaseException | str]:
        entered, done = asyncio.Event(), asyncio.Event()

        async def first() -> str:
            with Replayer(priced) as replayed:
                entered.set()
                await done.wait()
                return str(await replayed.arun(asyncio.to_thread, shop.run))

        async def second() -> None:
            await entered.wait()
            try:
                opens()
            finally:
                done.set()

        return await asyncio.gather(first(), second(), return_exceptions=True)  # type: ignore[return-value]

    shop = Shop(price=Counted().tool, pay=Counted("paid", name="pay", mutating=True).tool)
    with Replayer(priced) as replayed:
        with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="pytest -n"):
            pool.submit(opens).result()
        with pytest.raises(UsageError, match="already open"):
            replayed.__enter__()
        assert replayed.run(shop.run) == "Done."
    ran, refused = asyncio.run(tasks())
    assert ran == "Done."
    assert "one after the other" in str(refused)

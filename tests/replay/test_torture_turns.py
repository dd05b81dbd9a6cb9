"""Torture cases 13, 14 and 16 to 20: the order of answers, the order of requests, and that nothing ever hangs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs import runtime
from replay import Divergence, DivergenceError, Fixture, Replayer, ReplayOptions
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.meeting import met

QUICK = ReplayOptions(deadline_seconds=0.4)


def question(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": prompt}]}


async def tell(client: AsyncAnthropic, prompt: str) -> str:
    async with client.messages.stream(**question(prompt)) as stream:
        return f"{prompt}: {await stream.get_final_text()}"


def client(url: str | None) -> AsyncAnthropic:
    return agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))


def race(
    prompts: Sequence[str], how: str, url: str | None = None, late: Sequence[str] = ()
) -> list[str]:
    """Let the first answer decide what is asked next; return all that was told. Some are asked a little `late`."""

    async def enter(asked: AsyncAnthropic, prompt: str) -> str:
        await asyncio.sleep(0.03 if prompt in late else 0)
        return await tell(asked, prompt)

    async def first(asked: AsyncAnthropic) -> list[str]:
        tasks = [asyncio.create_task(enter(asked, prompt)) for prompt in prompts]
        if how == "wait":
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = done.pop().result()
            assert not done
            for each in rest:
                each.cancel()
            await asyncio.wait(rest)
            return [winner]
        return [await each for each in asyncio.as_completed(tasks)]

    async def main() -> list[str]:
        async with client(url) as asked:
            with agentobs.session("race"):
                told = await first(asked)
                return [*told, await tell(asked, f"more of {told[0]}")]

    return asyncio.run(main())


def raced(
    tmp_path: Path, run: Callable[..., list[str]], *args: Any, early: bool = False
) -> tuple[Fixture, list[str]]:
    told: list[list[str]] = []
    rounds = [[3, 1, 2], [1]]
    recording = met(tmp_path, lambda url: told.append(run(*args, url)), rounds, early=early)
    return frozen(tmp_path, recording, "race"), told[0]


ORDERS = (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a"))


@pytest.mark.parametrize("early", [False, True], ids=["heads in turn", "heads first"])
@pytest.mark.parametrize("how", ["wait", "as_completed"])
def test_13_the_recorded_winner_wins(tmp_path: Path, how: str, early: bool) -> None:
    """Which answer came first decides the path: it comes first again, although all come at once, and losers lose."""
    fixture, told = raced(tmp_path, race, ORDERS[0], how, early=early)
    for prompts in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(race, prompts, how) == told


def test_13_losers_that_start_late_still_start(tmp_path: Path) -> None:
    """The winner's answer ends when those are asked that had been asked by then, who would be cancelled before."""
    fixture, told = raced(tmp_path, race, ORDERS[0], "wait")
    losers = [prompt for prompt in ORDERS[0] if prompt != told[0][0]]
    with Replayer(fixture) as replay:
        assert replay.run(race, ORDERS[0], "wait", None, losers) == told
    assert replay.progress.requests_matched == 4


def thread_race(prompts: Sequence[str], url: str | None = None) -> list[str]:
    """Do so with threads."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as asked:
        agentobs.record(asked)

        def tell(prompt: str) -> str:
            with asked.messages.stream(**question(prompt)) as stream:
                return f"{prompt}: {stream.get_final_text()}"

        with agentobs.session("race"), concurrent.futures.ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(tell, prompt) for prompt in prompts]
            done, _ = concurrent.futures.wait(
                futures, return_when=concurrent.futures.FIRST_COMPLETED
            )
            winner = done.pop().result()
            return [winner, tell(f"more of {winner}")]


def test_13_threads_too(tmp_path: Path) -> None:
    """The thread whose answer came first is the first to end."""
    fixture, told = raced(tmp_path, thread_race, ORDERS[0])
    for prompts in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(thread_race, prompts) == told


def in_turn(prompts: Sequence[str]) -> list[str]:
    """Ask one after the other what had been asked at once."""

    async def main() -> list[str]:
        async with client(None) as asked:
            with agentobs.session("race"):
                return [await tell(asked, prompt) for prompt in prompts]

    return asyncio.run(main())


def test_13_what_an_answer_waits_for_may_never_be_asked(tmp_path: Path) -> None:
    """Where the first to end is asked after the others now, nothing hangs: a later report says who waited for whom."""
    fixture, told = raced(tmp_path, race, ORDERS[0], "as_completed")
    first = told[0][0]
    others = [prompt for prompt in ORDERS[0] if prompt != first]
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(in_turn, [*others, first])
    found = raised.value.divergence
    assert (found.kind, found.number) == ("missing", 4)
    earlier = " ".join(each.text for each in found.suspicions)
    waited = {
        int(number) for number in re.findall(r"waits for request (\d), which was not", earlier)
    }
    assert waited
    assert waited <= {number_of(fixture, each) for each in (*others[1:], first)}
    assert "earlier" in found.text()


def number_of(fixture: Fixture, prompt: str) -> int:
    """Return which ask a prompt was."""
    asks = {json.loads(fixture.body(a.number))["messages"][0]["content"]: a for a in fixture.asks}
    return asks[prompt].number


def two_at_a_time(prompts: Sequence[str], url: str | None = None) -> list[str]:
    """Ask them all, two of them at a time."""

    async def main() -> list[str]:
        room = asyncio.Semaphore(2)

        async def one(asked: AsyncAnthropic, prompt: str) -> str:
            async with room:
                return await tell(asked, prompt)

        async with client(url) as asked:
            with agentobs.session("race"):
                return sorted(await asyncio.gather(*(one(asked, each) for each in prompts)))

    return asyncio.run(main())


def test_13_two_at_a_time_start_in_any_order(tmp_path: Path) -> None:
    """Where those that may start now wait for others that may not, the first of them goes on, and that is noted."""
    told: list[list[str]] = []
    rounds = [[2, 1], [2, 1], [1, 2]]
    run = met(tmp_path, lambda url: told.append(two_at_a_time("abcdef", url)), rounds)
    fixture = frozen(tmp_path, run, "race")
    with Replayer(fixture) as replay:
        assert replay.run(two_at_a_time, "abcdef") == told[0]
    assert replay.suspicions == ()
    with Replayer(fixture) as replay:
        assert replay.run(two_at_a_time, "fbedca") == told[0]
    noted = [each.request for each in replay.suspicions]
    assert noted
    assert len(set(noted)) == len(noted)


def alternating(url: str | None = None) -> list[str]:
    """Read two streams in one thread, by turns."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as asked:
        agentobs.record(asked)
        with agentobs.session("race"):
            streams = [asked.messages.create(**question(each), stream=True) for each in "ab"]
            return [f"{a and a.type} {b and b.type}" for a, b in itertools.zip_longest(*streams)]


def test_13_a_thread_does_not_wait_for_itself(tmp_path: Path) -> None:
    """An answer that ended after another one of its thread ends whenever it is read to its end."""
    told: list[list[str]] = []
    given = [streamed(text(word), number=number) for number, word in enumerate(("one", "two"), 1)]
    run = recorded(tmp_path, lambda url: told.append(alternating(url)), given)
    fixture = frozen(tmp_path, run, "race")
    # Read to its end in the same piece, the second one ends first in the replay.
    second = replace(fixture.asks[0], ends_after=frozenset({2}))
    for asks in (fixture.asks, [second, fixture.asks[1]]):
        given_so = Fixture(fixture.path, fixture.header, asks, fixture.tools, fixture.world)
        with Replayer(given_so, ReplayOptions(deadline_seconds=5)) as replay:
            assert replay.run(alternating) == told[0]
        assert replay.suspicions == ()


def test_14_reordered_sequential_requests_diverge_at_the_first(tmp_path: Path) -> None:
    """Both bodies are in the recording, and yet the first of them comes too early."""

    def ask(*prompts: str, url: str | None = None) -> None:
        with Anthropic(api_key=KEY, base_url=url, max_retries=0) as asked:
            agentobs.record(asked)
            with agentobs.session("two"):
                for prompt in prompts:
                    asked.messages.create(**question(prompt))

    given = [streamed(text(word), number=number) for number, word in enumerate(("one", "two"), 1)]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: ask("a", "b", url=url), given))
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(ask, "b", "a")
    found = raised.value.divergence
    assert (found.kind, found.number, replay.progress.requests_matched) == ("order", 1, 0)


class Loop:
    """An agent that asks a few times, and swallows whatever goes wrong."""

    def __init__(self, *prompts: str, url: str | None = None, retries: int = 2) -> None:
        self.prompts, self.url, self.retries = prompts, url, retries
        self.told: list[str] = []

    def run(self) -> list[str]:
        with Anthropic(api_key=KEY, base_url=self.url, max_retries=self.retries) as asked:
            agentobs.record(asked)
            with agentobs.session("loop"):
                for prompt in self.prompts:
                    try:
                        with asked.messages.stream(**question(prompt)) as stream:
                            self.told.append(stream.get_final_text())
                    except Exception as error:
                        self.told.append(type(error).__name__)
        return self.told


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session of three questions: a, b, c."""
    path = tmp_path_factory.mktemp("three")
    given = [streamed(text(f"answer {number}"), number=number) for number in (1, 2, 3)]
    return frozen(path, recorded(path, lambda url: Loop("a", "b", "c", url=url).run(), given))


def diverged(
    fixture: Fixture, agent: Callable[..., Any], *args: Any
) -> tuple[Divergence, Replayer]:
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(agent, *args)
    return raised.value.divergence, replay


def test_16_one_extra_identical_request_at_the_end(three: Fixture) -> None:
    """The last answer is not repeated."""
    agent = Loop("a", "b", "c", "c")
    found, replay = diverged(three, agent.run)
    assert (found.kind, found.number, replay.progress.requests_matched) == ("extra", 4, 3)
    assert agent.told == ["answer 1", "answer 2", "answer 3", "DivergenceError"]


def test_17_agent_swallows_the_divergence(three: Fixture) -> None:
    """What it swallowed fails the test all the same, with the first divergence, not with a later one."""
    found, _ = diverged(three, Loop("a", "x", "y", "c").run)
    assert (found.kind, found.number) == ("content", 2)
    assert [d.actual for d in found.differences] == ["x"]


def test_18_a_divergence_is_raised_once(three: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK neither tries again nor waits: one question, and no sleep."""
    asked: list[bytes] = []
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    agent = Loop("x", retries=5)
    with pytest.raises(DivergenceError), Replayer(three) as replay:
        answer = replay._answering.answer

        def counted(question: Any, place: Any) -> Any:
            asked.append(question.body)
            return answer(question, place)

        with runtime.replaced(answerer=counted):
            replay.run(agent.run)
    assert (len(asked), waited, agent.told) == (1, [], ["DivergenceError"])


def test_19_after_the_divergence_nothing_is_served(three: Fixture) -> None:
    """Not even a request that is the recorded one gets an answer any more."""
    agent = Loop("a", "x", "b", "c")
    _, replay = diverged(three, agent.run)
    assert agent.told == ["answer 1", *["DivergenceError"] * 3]
    assert replay.progress.requests_matched == 1


def test_20_a_divergence_while_other_lanes_wait(tmp_path: Path) -> None:
    """Those whose answers wait for one that diverges end, too, each with the divergence."""
    fixture, told = raced(tmp_path, race, ORDERS[0], "as_completed")
    first = told[0][0]
    ended: list[str] = []

    def changed(prompt: str) -> str:
        return prompt if prompt != first else "something else"

    async def main() -> None:
        async def one(asked: AsyncAnthropic, prompt: str) -> None:
            try:
                # The one that others wait for comes last, when they wait.
                await asyncio.sleep(0.05 if prompt != changed(prompt) else 0)
                await tell(asked, changed(prompt))
            except DivergenceError:
                ended.append(prompt)

        async with client(None) as asked:
            with agentobs.session("race"):
                await asyncio.gather(*(one(asked, prompt) for prompt in ORDERS[0]))

    with pytest.raises(DivergenceError, match="something else"), Replayer(fixture) as replay:
        replay.run(main)
    assert sorted(ended) == ["a", "b", "c"]


def hangs_in_a_task() -> None:
    async def main() -> None:
        async with client(None) as asked:
            with agentobs.session("loop"):
                await tell(asked, "a")
                await asyncio.get_running_loop().create_future()

    asyncio.run(main())


def hangs_in_a_lock() -> None:
    Loop("a").run()
    threading.Event().wait()


def hangs_in_a_thread() -> None:
    done = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(done.wait).result()
        finally:
            done.set()


def hangs_and_will_not_stop() -> None:
    with contextlib.suppress(DivergenceError):
        hangs_in_a_lock()
    hangs_in_a_task()


@pytest.mark.parametrize(
    "agent", [hangs_in_a_task, hangs_in_a_lock, hangs_in_a_thread, hangs_and_will_not_stop]
)
def test_20_a_hang_is_a_divergence(three: Fixture, agent: Callable[[], None]) -> None:
    """Whatever an agent waits for that never comes ends at the deadline, and the report says where it waits."""
    with pytest.raises(DivergenceError) as raised, Replayer(three, QUICK) as replay:
        replay.run(agent)
    found = raised.value.divergence
    assert found.kind == "timing"
    assert "the agent made no progress for 0.4 seconds" in found.summary
    assert "test_torture_turns.py" in found.text()


def test_20_a_hang_after_the_last_request_names_it(three: Fixture) -> None:
    """A report names no request that there is not."""

    def asks_all_and_hangs() -> None:
        Loop("a", "b", "c").run()
        threading.Event().wait()

    with pytest.raises(DivergenceError) as raised, Replayer(three, QUICK) as replay:
        replay.run(asks_all_and_hangs)
    found = raised.value.divergence
    assert (found.kind, found.number, found.of) == ("timing", 3, 3)

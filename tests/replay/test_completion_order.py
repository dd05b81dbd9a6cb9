"""The order of responses, the order of requests, and protection against hangs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import queue
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
from tests.replay.overlapping_requests import record_overlapping

QUICK = ReplayOptions(deadline_seconds=0.4)


def question(prompt: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": prompt}]}


async def ask(client: AsyncAnthropic, prompt: str) -> str:
    async with client.messages.stream(**question(prompt)) as stream:
        return f"{prompt}: {await stream.get_final_text()}"


def client(url: str | None) -> AsyncAnthropic:
    return agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))


def race(
    prompts: Sequence[str], method: str, url: str | None = None, late: Sequence[str] = ()
) -> list[str]:
    """Let the first response determine the next request; return all texts. Prompts in `late` start later."""

    async def ask_later(sdk: AsyncAnthropic, prompt: str) -> str:
        await asyncio.sleep(0.03 if prompt in late else 0)
        return await ask(sdk, prompt)

    async def first(sdk: AsyncAnthropic) -> list[str]:
        tasks = [asyncio.create_task(ask_later(sdk, prompt)) for prompt in prompts]
        if method == "wait":
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = done.pop().result()
            assert not done
            for each in rest:
                each.cancel()
            await asyncio.wait(rest)
            return [winner]
        return [await each for each in asyncio.as_completed(tasks)]

    async def main() -> list[str]:
        async with client(url) as sdk:
            with agentobs.session("race"):
                texts = await first(sdk)
                return [*texts, await ask(sdk, f"more of {texts[0]}")]

    return asyncio.run(main())


def recorded_race(
    tmp_path: Path, run: Callable[..., list[str]], *args: Any, early: bool = False
) -> tuple[Fixture, list[str]]:
    results: list[list[str]] = []
    rounds = [[3, 1, 2], [1]]
    recording = record_overlapping(
        tmp_path,
        lambda url: results.append(run(*args, url)),
        rounds,
        early=early,
        only_first="wait" in args,
    )
    return frozen(tmp_path, recording, "race"), results[0]


ORDERS = (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a"))


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True], ids=["headers with response", "headers first"])
@pytest.mark.parametrize("method", ["wait", "as_completed"])
def test_the_recorded_winner_wins(tmp_path: Path, method: str, early: bool) -> None:
    """The response that came first in the recording comes first in the replay, in whatever order the requests are
    sent.
    """
    fixture, texts = recorded_race(tmp_path, race, ORDERS[0], method, early=early)
    for prompts in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(race, prompts, method) == texts


def test_late_losers_still_start(tmp_path: Path) -> None:
    """The first response completes only after the requests that were recorded before its end have been sent."""
    fixture, texts = recorded_race(tmp_path, race, ORDERS[0], "wait")
    losers = [prompt for prompt in ORDERS[0] if prompt != texts[0][0]]
    with Replayer(fixture) as replay:
        assert replay.run(race, ORDERS[0], "wait", None, losers) == texts
    assert replay.progress.requests_matched == 4


def thread_race(prompts: Sequence[str], url: str | None = None) -> list[str]:
    """Do the same as `race` with threads."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as sdk:
        agentobs.record(sdk)

        def ask_in_thread(prompt: str) -> str:
            with sdk.messages.stream(**question(prompt)) as stream:
                return f"{prompt}: {stream.get_final_text()}"

        # Not the set of `concurrent.futures.wait`: two threads may have ended when it is read, and it has no order.
        ended: queue.Queue[str] = queue.Queue()
        with agentobs.session("race"), concurrent.futures.ThreadPoolExecutor(3) as pool:
            for prompt in prompts:
                pool.submit(lambda each: ended.put(ask_in_thread(each)), prompt)
            winner = ended.get(timeout=60)
            return [winner, ask_in_thread(f"more of {winner}")]


@pytest.mark.slow
def test_the_recorded_winner_wins_with_threads(tmp_path: Path) -> None:
    """The thread that received the first response in the recording ends first in the replay."""
    fixture, texts = recorded_race(tmp_path, thread_race, ORDERS[0])
    for prompts in ORDERS:
        with Replayer(fixture) as replay:
            assert replay.run(thread_race, prompts) == texts


def send_sequentially(prompts: Sequence[str]) -> list[str]:
    """Send the requests of `race` one after the other."""

    async def main() -> list[str]:
        async with client(None) as sdk:
            with agentobs.session("race"):
                return [await ask(sdk, prompt) for prompt in prompts]

    return asyncio.run(main())


def test_a_response_does_not_wait_for_a_missing_request(tmp_path: Path) -> None:
    """If the request that completed first is now sent last, nothing hangs, and a later report describes the changed
    order.
    """
    fixture, texts = recorded_race(tmp_path, race, ORDERS[0], "as_completed")
    first = texts[0][0]
    others = [prompt for prompt in ORDERS[0] if prompt != first]
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(send_sequentially, [*others, first])
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
    """Return the request number of a prompt."""
    requests = {
        json.loads(fixture.body(a.number))["messages"][0]["content"]: a for a in fixture.requests
    }
    return requests[prompt].number


def two_at_a_time(prompts: Sequence[str], url: str | None = None) -> list[str]:
    """Send all prompts, two at a time."""

    async def main() -> list[str]:
        semaphore = asyncio.Semaphore(2)

        async def limited(sdk: AsyncAnthropic, prompt: str) -> str:
            async with semaphore:
                return await ask(sdk, prompt)

        async with client(url) as sdk:
            with agentobs.session("race"):
                return sorted(await asyncio.gather(*(limited(sdk, each) for each in prompts)))

    return asyncio.run(main())


@pytest.mark.slow
def test_limited_concurrency_starts_in_any_order(tmp_path: Path) -> None:
    """If responses wait for requests that cannot start because concurrency is limited, the replay continues with a
    note.
    """
    results: list[list[str]] = []
    rounds = [[2, 1], [2, 1], [1, 2]]
    run = record_overlapping(
        tmp_path, lambda url: results.append(two_at_a_time("abcdef", url)), rounds
    )
    fixture = frozen(tmp_path, run, "race")
    with Replayer(fixture) as replay:
        assert replay.run(two_at_a_time, "abcdef") == results[0]
    assert replay.suspicions == ()
    with Replayer(fixture) as replay:
        assert replay.run(two_at_a_time, "fbedca") == results[0]
    noted = [each.request for each in replay.suspicions]
    assert noted
    assert len(set(noted)) == len(noted)


def alternating(url: str | None = None) -> list[str]:
    """Read two streams in one thread, alternating between them."""
    with Anthropic(api_key=KEY, base_url=url, max_retries=0) as sdk:
        agentobs.record(sdk)
        with agentobs.session("race"):
            streams = [sdk.messages.create(**question(each), stream=True) for each in "ab"]
            return [f"{a and a.type} {b and b.type}" for a, b in itertools.zip_longest(*streams)]


def test_a_thread_does_not_wait_for_itself(tmp_path: Path) -> None:
    """A response never waits for another response that the same thread has yet to read."""
    results: list[list[str]] = []
    responses = [
        streamed(text(word), number=number) for number, word in enumerate(("one", "two"), 1)
    ]
    run = recorded(tmp_path, lambda url: results.append(alternating(url)), responses)
    fixture = frozen(tmp_path, run, "race")
    # the first stream must now end after the second, although one thread reads both
    second = replace(fixture.requests[0], ends_after=frozenset({2}))
    for requests in (fixture.requests, [second, fixture.requests[1]]):
        changed = Fixture(fixture.path, fixture.header, requests, fixture.tools, fixture.world)
        with Replayer(changed, ReplayOptions(deadline_seconds=5)) as replay:
            assert replay.run(alternating) == results[0]
        assert replay.suspicions == ()


def test_reordered_sequential_requests_diverge_at_the_first(tmp_path: Path) -> None:
    """If two sequential requests are swapped, the first of them diverges, although it equals a later recorded
    request. An earlier session of the same thread that used a queue makes no difference.
    """
    recorded_race(tmp_path / "earlier", thread_race, ORDERS[0])

    def send(*prompts: str, url: str | None = None) -> None:
        with Anthropic(api_key=KEY, base_url=url, max_retries=0) as sdk:
            agentobs.record(sdk)
            with agentobs.session("two"):
                for prompt in prompts:
                    sdk.messages.create(**question(prompt))

    responses = [
        streamed(text(word), number=number) for number, word in enumerate(("one", "two"), 1)
    ]
    fixture = frozen(tmp_path, recorded(tmp_path, lambda url: send("a", "b", url=url), responses))
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(send, "b", "a")
    found = raised.value.divergence
    assert (found.kind, found.number, replay.progress.requests_matched) == ("order", 1, 0)


class Loop:
    """An agent that sends several requests and ignores all errors."""

    def __init__(self, *prompts: str, url: str | None = None, retries: int = 2) -> None:
        self.prompts, self.url, self.retries = prompts, url, retries
        self.results: list[str] = []

    def run(self) -> list[str]:
        with Anthropic(api_key=KEY, base_url=self.url, max_retries=self.retries) as sdk:
            agentobs.record(sdk)
            with agentobs.session("loop"):
                for prompt in self.prompts:
                    try:
                        with sdk.messages.stream(**question(prompt)) as stream:
                            self.results.append(stream.get_final_text())
                    except Exception as error:
                        self.results.append(type(error).__name__)
        return self.results


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session with three requests: a, b, c."""
    path = tmp_path_factory.mktemp("three")
    responses = [streamed(text(f"answer {number}"), number=number) for number in (1, 2, 3)]
    return frozen(path, recorded(path, lambda url: Loop("a", "b", "c", url=url).run(), responses))


def diverged(
    fixture: Fixture, agent: Callable[..., Any], *args: Any
) -> tuple[Divergence, Replayer]:
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replay:
        replay.run(agent, *args)
    return raised.value.divergence, replay


def test_an_additional_identical_request_diverges(three: Fixture) -> None:
    """An additional request diverges even if it equals the last recorded request, whose response is not repeated."""
    agent = Loop("a", "b", "c", "c")
    found, replay = diverged(three, agent.run)
    assert (found.kind, found.number, replay.progress.requests_matched) == ("extra", 4, 3)
    assert agent.results == ["answer 1", "answer 2", "answer 3", "DivergenceError"]


def test_a_caught_divergence_fails_the_test(three: Fixture) -> None:
    """If the agent catches the divergence, the test still fails, and reports the first divergence."""
    found, _ = diverged(three, Loop("a", "x", "y", "c").run)
    assert (found.kind, found.number) == ("content", 2)
    assert [d.actual for d in found.differences] == ["x"]


def test_a_divergence_is_not_retried(three: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK neither retries nor sleeps after a divergence, so there is one request."""
    bodies: list[bytes] = []
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    agent = Loop("x", retries=5)
    with pytest.raises(DivergenceError), Replayer(three) as replay:
        answer = replay._answerer.answer

        def counted(question: Any, place: Any) -> Any:
            bodies.append(question.body)
            return answer(question, place)

        with runtime.replaced(answerer=counted):
            replay.run(agent.run)
    assert (len(bodies), waited, agent.results) == (1, [], ["DivergenceError"])


def test_no_responses_after_a_divergence(three: Fixture) -> None:
    """After a divergence, even a matching request receives no response."""
    agent = Loop("a", "x", "b", "c")
    _, replay = diverged(three, agent.run)
    assert agent.results == ["answer 1", *["DivergenceError"] * 3]
    assert replay.progress.requests_matched == 1


def test_a_divergence_ends_waiting_requests(tmp_path: Path) -> None:
    """A divergence also ends the requests that wait for the diverging request, each with the divergence as its
    error.
    """
    fixture, texts = recorded_race(tmp_path, race, ORDERS[0], "as_completed")
    first = texts[0][0]
    ended: list[str] = []

    def changed(prompt: str) -> str:
        return prompt if prompt != first else "something else"

    async def main() -> None:
        async def ask_changed(sdk: AsyncAnthropic, prompt: str) -> None:
            try:
                # The request that the other requests wait for is sent last, while they wait.
                await asyncio.sleep(0.05 if prompt != changed(prompt) else 0)
                await ask(sdk, changed(prompt))
            except DivergenceError:
                ended.append(prompt)

        async with client(None) as sdk:
            with agentobs.session("race"):
                await asyncio.gather(*(ask_changed(sdk, prompt) for prompt in ORDERS[0]))

    with pytest.raises(DivergenceError, match="something else"), Replayer(fixture) as replay:
        replay.run(main)
    assert sorted(ended) == ["a", "b", "c"]


def hangs_in_a_task() -> None:
    async def main() -> None:
        async with client(None) as sdk:
            with agentobs.session("loop"):
                await ask(sdk, "a")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent", [hangs_in_a_task, hangs_in_a_lock, hangs_in_a_thread, hangs_and_will_not_stop]
)
def test_a_hang_is_a_divergence(three: Fixture, agent: Callable[[], None]) -> None:
    """An endless wait of the agent ends at the deadline as a divergence, and the report names the place of the wait."""
    with pytest.raises(DivergenceError) as raised, Replayer(three, QUICK) as replay:
        replay.run(agent)
    found = raised.value.divergence
    assert found.kind == "timing"
    # A thread that could compute, as on a busy machine, has ten times as long.
    assert re.search(r"the agent made no progress for (0\.4|4) seconds", found.summary)
    assert "test_completion_order.py" in found.text()


def test_a_hang_after_the_last_request_names_the_last_request(three: Fixture) -> None:
    """If the agent hangs after its last request, the report names this request and not a later one."""

    def asks_all_and_hangs() -> None:
        Loop("a", "b", "c").run()
        threading.Event().wait()

    with pytest.raises(DivergenceError) as raised, Replayer(three, QUICK) as replay:
        replay.run(asks_all_and_hangs)
    found = raised.value.divergence
    assert (found.kind, found.number, found.of) == ("timing", 3, 3)

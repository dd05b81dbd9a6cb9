"""Sub-agents that send identical requests at the same time each receive their own responses in a replay."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs import world
from agentobs.determinism import callers, jobs
from agentobs.records.exchanges import Origin
from replay import DivergenceError, Fixture, Replayer
from replay.playback import completion_order
from tests.marks import mark_all_but_first
from tests.replay.agents import KEY
from tests.replay.concurrent_agents import (
    AGENTS,
    Received,
    Setting,
    ask_async,
    in_objects,
    recorded_agent,
    user,
    with_map,
)

OVERLAPS = pytest.mark.parametrize("overlaps", [True, False], ids=["overlapping", "sequential"])
ROOT = Path(__file__).parent.parent.parent


def replayed(
    fixture: Fixture, agent: Callable[[Setting], Received], noise_s: float = 0.01
) -> Received:
    with Replayer(fixture) as replay:
        received: Received = replay.run(agent, Setting(noise_s=noise_s))
    assert replay.suspicions == ()
    return received


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overlaps"),
    mark_all_but_first(
        [*((name, True) for name in AGENTS), *((name, False) for name in AGENTS)],
        pytest.mark.soak,
        kept=len(AGENTS) + 3,
    ),
)
def test_each_sub_agent_receives_its_own_responses(
    tmp_path: Path, name: str, overlaps: bool
) -> None:
    """Sub-agents that run concurrently each receive their own responses, whether or not they overlapped in the
    recording.
    """
    fixture, received = recorded_agent(tmp_path, AGENTS[name], overlaps=overlaps)
    for noise_s in (0.0, 0.01):
        assert replayed(fixture, AGENTS[name], noise_s) == received


class Slow(Setting):
    """An agent that computes for longer than a response is held, and then sleeps."""

    def pause(self) -> None:
        until = world.process_cpu() + 200_000_000
        while world.process_cpu() < until:
            sum(range(1_000))
        time.sleep(0.005)


@pytest.mark.slow
def test_a_response_is_held_while_other_threads_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response is held for longer than the limit while other threads compute, because only idle time counts."""
    monkeypatch.setattr(completion_order, "PAUSES_SECONDS", 0.05)
    agent = partial(in_objects, wrapper="dict")
    fixture, received = recorded_agent(tmp_path, agent, overlaps=True)
    with Replayer(fixture) as replay:
        assert replay.run(agent, Slow()) == received
    assert replay.suspicions == ()


@pytest.mark.parametrize(
    "wrapper", mark_all_but_first(["block", "model", "nested", "library"], pytest.mark.slow)
)
def test_a_tool_call_id_inside_an_object_distinguishes_sub_agents(
    tmp_path: Path, wrapper: str
) -> None:
    """Sub-agents that start in a different order are distinguished by the tool call ID inside the object that they
    received.
    """
    fixture, received = recorded_agent(
        tmp_path, partial(in_objects, wrapper=wrapper), overlaps=True
    )
    assert len({str(each) for each in received.values()}) == 3
    assert replayed(fixture, partial(in_objects, wrapper=wrapper, order=-1)) == received


@pytest.mark.slow
@OVERLAPS
def test_a_changed_sub_agent_diverges_at_its_own_request(tmp_path: Path, overlaps: bool) -> None:
    """The changed request of a sub-agent is compared with the recorded request of the same sub-agent."""
    fixture, received = recorded_agent(tmp_path, with_map, overlaps=overlaps)
    answers = [f"answer {number}" for number in range(2, 8)]
    assert sorted(each for found in received["found"] for each in found) == answers
    with pytest.raises(DivergenceError) as diverged, Replayer(fixture) as replay:
        replay.run(with_map, Setting(changed="b"))
    found = diverged.value.divergence
    assert found.kind == "content"
    assert [each.actual for each in found.differences] == ["Dig elsewhere."]
    assert 'recorded  "Dig deeper."' in found.text()


def test_a_fixture_contains_no_names_of_callers(tmp_path: Path) -> None:
    """A fixture contains the functions of callers as digests, and their arguments as prefixes of digests."""
    agent = partial(in_objects, wrapper="block")
    fixture, _ = recorded_agent(tmp_path, agent, overlaps=True)
    text = "".join(
        line
        for line in fixture.path.read_text().splitlines(keepends=True)
        if line.startswith('{"request":')
    )
    assert '"job":' in text
    assert "work" not in text
    assert "toolu_" not in text
    for each in fixture.requests:
        assert all(len(digest.partition(".")[2]) <= 8 for digest in each.caller or ())


# Identical requests with identical callers.


def identical_tasks(setting: Setting, spans: bool = False) -> Received:
    """Start tasks without arguments in a way that hides which code started the tasks."""

    async def run() -> Received:
        async with AsyncAnthropic(api_key=KEY, base_url=setting.url, max_retries=0) as client:
            agentobs.record(client)
            names = iter("ab")

            async def work() -> Any:
                if not spans:
                    return (await ask_async(client, [user("Dig.")])).content[0].text
                with agentobs.span(f"agent-{next(names)}"):
                    return (await ask_async(client, [user("Dig.")])).content[0].text

            with agentobs.session("agent"):
                loop = asyncio.get_running_loop()
                found = await asyncio.gather(*(asyncio.Task(work(), loop=loop) for _ in range(2)))
                await ask_async(client, [user("wrong" if setting.changed else "right")])
                return {"found": found}

    return asyncio.run(run())


@pytest.mark.slow
def test_a_divergence_names_indistinguishable_requests(tmp_path: Path) -> None:
    """The report of a divergence names concurrent requests that were indistinguishable, and proposes a span to
    distinguish them.
    """
    fixture, _ = recorded_agent(tmp_path, identical_tasks, overlaps=True)
    with pytest.raises(DivergenceError) as diverged, Replayer(fixture) as replay:
        replay.run(identical_tasks, Setting(changed="all"))
    text = " ".join(diverged.value.divergence.text().split())
    assert "requests 1 and 2 are identical and may be concurrent" in text
    assert "with agentobs.span(NAME)" in text


def test_a_span_distinguishes_requests(tmp_path: Path) -> None:
    """Identical concurrent requests are distinguished if each of them is sent in its own span."""
    agent = partial(identical_tasks, spans=True)
    fixture, received = recorded_agent(tmp_path, agent, overlaps=True)
    assert replayed(fixture, agent) == received


# Wrapped functions keep their behavior.


def test_tasks_and_pools_work_as_before() -> None:
    """While callers are followed, a task keeps its name and source traceback, and a work item's exception has no frame
    of agentobs.
    """
    callers.follow_jobs()

    def fails() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as pool:
        future: Future[None] = pool.submit(fails)
        error = future.exception()
    frames = []
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert frames
    assert jobs.__file__ not in frames

    async def main() -> str:
        task = asyncio.get_running_loop().create_task(asyncio.sleep(0, "done"), name="mine")
        assert task.get_name() == "mine"
        source: Any = getattr(task, "_source_traceback", None)
        assert source is not None
        assert source[-1].filename == __file__
        return await task

    assert asyncio.run(main(), debug=True) == "done"


def test_a_chain_of_tasks_needs_bounded_memory() -> None:
    """In an endless chain of tasks, each of which starts the next, the recorded path of a task has a maximum length."""
    callers.follow_jobs()
    paths: list[int] = []

    async def link(remaining: int) -> None:
        job = jobs.current()
        assert job is not None
        paths.append(len(job.steps))
        if remaining:
            links.append(asyncio.get_running_loop().create_task(link(remaining - 1)))

    links: list[asyncio.Task[None]] = []

    async def main() -> None:
        links.append(asyncio.get_running_loop().create_task(link(60)))
        while links:
            await links.pop(0)

    asyncio.run(main())
    assert max(paths) == jobs.DEPTH_MAX


SOAK = """
import sys
from pathlib import Path
from replay import Replayer, load
from tests.replay.concurrent_agents import AGENTS, Setting
name, path, times = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
for _ in range(times):
    with Replayer(load(path)) as replay:
        print(replay.run(AGENTS[name], Setting(noise_s=0.03)))
"""


@pytest.mark.soak
@OVERLAPS
@pytest.mark.parametrize("name", AGENTS)
def test_fifty_replays_under_noise(tmp_path: Path, name: str, overlaps: bool) -> None:
    """Fifty replays in two parallel processes match, with different hash seeds and random sleeps between all steps."""
    fixture, received = recorded_agent(tmp_path, AGENTS[name], overlaps=overlaps)
    command = [sys.executable, "-c", SOAK, name, str(fixture.path), "25"]
    running = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    for each in running:
        printed, _ = each.communicate()
        assert each.returncode == 0
        assert printed.splitlines() == [str(received)] * 25


def test_shared_values_do_not_distinguish_callers() -> None:
    """Only the callers' own arguments distinguish them, not values that are shared or that only some callers have."""
    arguments = ("work", "number", 1), ("work", "number", 2)
    shared = ("work", "state.count", 7, "aa"), ("work", "state.count", 8, "aa")
    late = ("work", "mine.done", True, "bb")
    first = callers.digests(Origin("1", (arguments[0], shared[0]), None))
    second = callers.digests(Origin("2", (arguments[1], shared[1], late), None))
    found = callers.distinguishing_digests({1: first, 2: second}, {1: 10, 2: 20})
    assert found == {1: list(first[:1]), 2: list(second[:1])}
    only_arguments = callers.distinguishing_digests({1: first, 2: second[:2]}, {1: 10, 2: 10})
    assert [len(each) for each in only_arguments.values()] == [2, 2]
    assert not any("@" in digest for each in only_arguments.values() for digest in each)

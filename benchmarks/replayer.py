"""The cost of a replay: the same agent with responses from a list, from a fixture, and from a recording of vcrpy.

vcrpy (in the extra `bench`) replays a session of 50 turns, with and without matching of request bodies; its default is
without. It is not measured with longer sessions, because its recording of 1,000 turns has 287 MB of YAML, and 200 turns
with matching of bodies took 427 times as long as the SDK.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
from anthropic import Anthropic

import agentobs
from agentobs.cli.replay.batch import Job, replay_many
from agentobs.provider.registry import recorded_request_headers
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Place,
    Question,
    Recording,
)
from benchmarks.conversation import (
    Size,
    history,
    request_body,
    response_chunks,
    run,
    steps,
)
from benchmarks.measure import Cost, Part, Round, compare, cost_of, milliseconds, ratio, total
from benchmarks.provider import HEADERS, Canned, canned_client, client
from benchmarks.report import Section, Verdict, ratio_rows
from replay import Fixture, Replayer, load
from replay.fixture.format import find_fixture
from replay.freeze.conversion import freeze

SIZE = Size(deltas=16, result_bytes=1000)
SHORT, LONG = 50, 1000
ROUNDS = 15
BLOCK = 100
"""The number of turns of the long conversation that each row of the table summarizes."""
ALONE, REPEATED, REPLAYED = "canned responses", "floor, repeated", "replayed"
VCR, VCR_BODY = "vcrpy, bodies not compared", "vcrpy, bodies compared"
VCR_ROUNDS = 3
"""The number of complete runs with vcrpy, each of which takes some seconds if bodies are compared."""
MANY, MANY_TURNS, MANY_ROUNDS = 100, 20, 5
HEADER = ("", "wall", "CPU, process")
PARTS: tuple[Part, ...] = ("wall_ns", "process_ns")


def sections() -> Iterator[Section]:
    """Measure the cost of replays."""
    with tempfile.TemporaryDirectory() as name:
        short, long = Path(name, "short"), Path(name, "long")
        _in_process(_write, short, SHORT)
        yield _short(short)
        if importlib.util.find_spec("vcr") is not None:
            yield _in_process(_compare_vcr, short)
        _in_process(_write, long, LONG)
        yield _long(_in_process(_measure_long, long), find_fixture(long).stat().st_size)
        yield _many(Path(name))


def _in_process(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a new process, so that its peak memory can be measured."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _write(folder: Path, turns: int, entry: str | None = None) -> None:
    """Write the fixture of a session with the requests that `run` sends.

    `entry` is the function that starts the session.
    """
    exchanges = []
    messages = history(0, SIZE)
    headers = _request_headers()
    for turn in range(1, turns + 1):
        question = Question("POST", "/v1/messages", headers, request_body(messages))
        chunks = tuple(Chunk(data, 0) for data in response_chunks(turn, SIZE))
        exchanges.append(
            ModelExchange(
                place=Place("0" * 32, None, "main", turn),
                attempt_id=f"{turn:032x}",
                started_ns=turn,
                headers_ns=0,
                ended_ns=0,
                question=question,
                answer=Answer(200, HEADERS, chunks, "complete"),
            )
        )
        messages = history(turn, SIZE)
    arguments = None if entry is None else dict[str, Any]()
    recording = Recording(
        "0" * 32, "made", entry, arguments, "completed", None, None, 0, tuple(exchanges)
    )
    freeze(recording, folder, {})


def _request_headers() -> dict[str, str]:
    """Return the SDK's request headers that a fixture contains."""
    requests: list[httpx2.Request] = []
    provider = Canned([response_chunks(1, SIZE)])

    def handle(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return provider.handle_request(request)

    run(client(httpx2.Client(transport=httpx2.MockTransport(handle))), 1, SIZE)
    assert requests[0].content == request_body(history(0, SIZE)), (
        "`request_body` does not return the body that the SDK sends"
    )
    return recorded_request_headers(requests[0].headers)


def _responses(turns: int) -> list[list[bytes]]:
    return [response_chunks(turn, SIZE) for turn in range(1, turns + 1)]


def _recorded_client() -> Anthropic:
    """Return a recorded client as an agent creates it, but without a provider."""
    return agentobs.record(canned_client([]))


def _short(folder: Path) -> Section:
    """Compare complete runs, including the time to load the fixture."""
    responses = _responses(SHORT)

    def alone(_: int) -> Cost:
        return cost_of(lambda: run(canned_client(responses), SHORT, SIZE))

    def replayed(_: int) -> Cost:
        return cost_of(partial(_replay, folder))

    variants = {ALONE: alone, REPEATED: alone, REPLAYED: replayed}
    for each in variants.values():
        each(0)
    rounds = compare(variants, range(ROUNDS))
    rows = [
        (variant, [ratio(rounds, variant, ALONE, part) for part in PARTS]) for variant in variants
    ]
    measured, turn_ms = rows[-1][1][-1], milliseconds(rounds, ALONE, "process_ns") / SHORT
    return Section(
        f"Replay of {SHORT} turns",
        f"{ROUNDS} rounds of complete runs, including loading the fixture. With canned responses, the agent takes "
        f"{turn_ms:.1f} ms of CPU per turn.",
        HEADER,
        ratio_rows(rows),
        (
            Verdict(
                f"replay of {SHORT} turns, CPU, including loading",
                1.05,
                measured,
                why=_reason(turn_ms, measured),
            ),
        ),
    )


def _replay(folder: Path) -> None:
    with Replayer(load(folder)) as replay:
        replay.run(_agent)


def _agent() -> None:
    with agentobs.session("replayed"):
        run(_recorded_client(), SHORT, SIZE)


def _compare_vcr(folder: Path) -> Section:
    """Compare complete runs with vcrpy, including the time to load the recordings."""
    import vcr

    responses, recording = _responses(SHORT), folder / "vcr.yaml"
    match_options = {VCR: vcr.VCR().match_on, VCR_BODY: (*vcr.VCR().match_on, "body")}

    def cassette(mode: str, match_on: Sequence[str]) -> Any:
        return vcr.use_cassette(
            str(recording), record_mode=mode, match_on=match_on, allow_playback_repeats=False
        )

    def run_with(provider: httpx2.BaseTransport) -> None:
        transport = httpx2.MockTransport(provider.handle_request)
        run(client(httpx2.Client(transport=transport)), SHORT, SIZE)

    with cassette("all", match_options[VCR]):
        run_with(Canned(responses))

    def vcr_replay(variant: str, _: int) -> Cost:
        def work() -> None:
            with cassette("none", match_options[variant]):
                run_with(Canned([]))

        return cost_of(work)

    def alone(_: int) -> Cost:
        return cost_of(lambda: run(canned_client(responses), SHORT, SIZE))

    variants: dict[str, Callable[[int], Cost]] = {
        ALONE: alone,
        REPLAYED: lambda _: cost_of(partial(_replay, folder)),
        **{variant: partial(vcr_replay, variant) for variant in match_options},
    }
    rounds = compare(variants, range(VCR_ROUNDS))
    rows = [
        (variant, [ratio(rounds, variant, ALONE, part) for part in PARTS]) for variant in variants
    ]
    vcr_bytes, fixture_bytes = recording.stat().st_size, find_fixture(folder).stat().st_size
    return Section(
        f"Replay of {SHORT} turns, compared with vcrpy",
        f"{VCR_ROUNDS} rounds of complete runs, including loading. By default, vcrpy {version('vcrpy')} does not "
        f"compare bodies. Its recording has {vcr_bytes / 1e6:.1f} MB, the fixture has {fixture_bytes / 1e6:.2f} MB.",
        HEADER,
        ratio_rows(rows),
    )


def _agent_of_many() -> None:
    """Run one of many agents; this is the entry function of their fixtures."""
    with agentobs.session("replayed"):
        run(_recorded_client(), MANY_TURNS, SIZE)


def _many(folder: Path) -> Section:
    """Compare the replay of many fixtures one at a time and two at a time."""
    _in_process(_write, folder / "1", MANY_TURNS, f"{__name__}:_agent_of_many")
    for number in range(2, MANY + 1):
        shutil.copytree(folder / "1", folder / str(number))
    fixture_jobs = [Job(str(folder / str(number))) for number in range(1, MANY + 1)]

    def replayed(processes: int, _: int) -> Cost:
        with contextlib.chdir(Path(__file__).parents[1]):
            results: list[Any] = []
            cost = cost_of(lambda: results.extend(replay_many(fixture_jobs, processes, 300)))
        assert {each.result for each in results} == {"matched"}, results[0]
        return cost

    one, two = "one at a time", "two at a time"
    rounds = compare({one: partial(replayed, 1), two: partial(replayed, 2)}, range(MANY_ROUNDS))
    wall = ratio(rounds, two, one, "wall_ns")
    each_ms = milliseconds(rounds, one, "wall_ns") / MANY
    return Section(
        f"Replay of {MANY} fixtures of {MANY_TURNS} turns",
        f"{MANY_ROUNDS} rounds of all fixtures. As in `agentobs replay` with several fixtures, each is replayed in a "
        f"process that is forked from a process with the imported SDK. One at a time, each takes {each_ms:.0f} ms. The "
        f"load average of all programs on the {os.cpu_count()} processors was {os.getloadavg()[0]:.1f}.",
        ("", "wall"),
        ((one, "1.000"), (two, f"{wall:.3f}")),
        (
            Verdict(
                f"{MANY} fixtures two at a time, wall, divided by one at a time",
                1 / 1.8,
                wall,
                why="Another program used the second processor meanwhile.",
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _LongReplay:
    """The cost of a replay of the long fixture, measured in a separate process."""

    load: Cost
    rounds: list[Round]
    """The costs of each turn."""
    before_bytes: int
    """The peak memory of the process before it loaded the fixture."""
    peak_bytes: int


def _measure_long(folder: Path) -> _LongReplay:
    """Run three agents in alternation, one of them in a replay."""
    before, responses = _peak(), _responses(LONG)
    fixtures: list[Fixture] = []
    load_cost = cost_of(lambda: fixtures.append(load(folder)))
    with Replayer(fixtures[0]), agentobs.session("replayed"):
        clients = {variant: canned_client(responses) for variant in (ALONE, REPEATED)}
        clients[REPLAYED] = _recorded_client()
        agents = {variant: steps(each, LONG, SIZE) for variant, each in clients.items()}

        def step(variant: str, _: int) -> Cost:
            return cost_of(partial(next, agents[variant]))

        rounds = compare({variant: partial(step, variant) for variant in agents}, range(LONG))
    return _LongReplay(load_cost, rounds, before, _peak())


def _peak() -> int:
    """Return the peak memory of this process, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


def _long(measured: _LongReplay, size: int) -> Section:
    """Return the section of the long replay, with one row per block of turns."""
    blocks = [measured.rounds[at : at + BLOCK] for at in range(0, LONG, BLOCK)]
    block_rows = [
        (f"turns {1 + at * BLOCK} to {(at + 1) * BLOCK}", _ratios(b)) for at, b in enumerate(blocks)
    ]
    totals = _weighted_totals(blocks, measured.load)
    turn_ms = milliseconds(measured.rounds, ALONE, "process_ns")
    rows = [*block_rows, ("**all, including loading the fixture**", totals)]
    ideal = sum(len(b"".join(response_chunks(turn, SIZE))) for turn in range(1, LONG + 1))
    ideal += len(request_body(history(LONG - 1, SIZE)))
    return Section(
        f"Replay of {LONG:,} turns",
        "Three agents alternate after each turn in one separate process, so each turn is a round. Each row is the "
        "median over its turns; the last row weights the rows by their cost. With canned responses, the agent takes "
        f"{milliseconds(blocks[-1], ALONE, 'process_ns'):.0f} ms of CPU per turn at the end. The content of the "
        f"fixture, with each response and each message once, is {ideal / 1e6:.1f} MB. Before loading the fixture, "
        f"the process had used {measured.before_bytes / 1e6:.0f} MB.",
        ("", "replayed, wall", "replayed, CPU", "floor repeated, wall", "floor repeated, CPU"),
        ratio_rows(rows),
        (
            Verdict(
                f"replay of {LONG:,} turns, CPU, including loading",
                1.05,
                totals[1],
                why=_reason(turn_ms, totals[1]),
            ),
            Verdict(f"size of the fixture of {LONG:,} turns", 6.0, size / 1e6, "{:.2f} MB"),
            Verdict("loading this fixture, wall", 1.0, measured.load.wall_ns / 1e9, "{:.2f} s"),
            Verdict(
                "peak memory of the process of this replay",
                200,
                measured.peak_bytes / 1e6,
                "{:.0f} MB",
            ),
        ),
    )


def _ratios(rounds: list[Round]) -> list[float]:
    """Return the wall and CPU ratios of the replayed agent, then both ratios of the repeated floor."""
    return [
        ratio(rounds, variant, ALONE, part) for variant in (REPLAYED, REPEATED) for part in PARTS
    ]


def _weighted_totals(blocks: list[list[Round]], load: Cost) -> list[float]:
    """Return the ratios of `_ratios` for all turns.

    Blocks are weighted by their cost, and the time to load the fixture is added to the replay.
    """
    floors = [total(rounds, ALONE) for rounds in blocks]
    floor = sum(floors, Cost())
    loads = (load.wall_ns / floor.wall_ns, load.process_ns / floor.process_ns, 0.0, 0.0)
    weights = [each.process_ns / floor.process_ns for each in floors]
    sums = [
        sum(w * r for w, r in zip(weights, column, strict=True))
        for column in zip(*map(_ratios, blocks), strict=True)
    ]
    return [turns + loading for turns, loading in zip(sums, loads, strict=True)]


def _reason(turn_ms: float, measured: float) -> str:
    added = turn_ms * (measured - 1)
    return (
        f"A turn of {SIZE.deltas} deltas takes {turn_ms:.1f} ms in the SDK, and its replay adds {added:.2f} ms: its "
        "lines are read from the file, its request is rebuilt and compared, and its exchange is created. Most of "
        "this does not grow with the history, so the ratio is higher if turns are cheap."
    )

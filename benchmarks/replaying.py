"""What replaying costs: the same agent, answered from a list, from a fixture, and from a recording of vcrpy.

Of vcrpy (an extra, `bench`) a session of 50 turns is replayed, with request bodies matched and without, as it does by
default. At 1,000 turns its recording is 287 MB of YAML, and with bodies 200 turns took it 427 times as long as the SDK.
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
from agentobs.provider.registry import kept_request_headers
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
    answer,
    history,
    request_body,
    run,
    steps,
)
from benchmarks.measure import Cost, Part, Round, compare, cost_of, milliseconds, ratio, total
from benchmarks.provider import HEADERS, Canned, canned, client
from benchmarks.report import Section, Verdict, ratio_rows
from replay import Fixture, Replayer, load
from replay.fixture.format import find_fixture
from replay.freeze.conversion import freeze

SIZE = Size(deltas=16, result_bytes=1000)
SHORT, LONG = 50, 1000
ROUNDS = 15
BLOCK = 100
"""Turns of the long conversation that are told together."""
ALONE, AGAIN, REPLAYED = "canned answers", "again", "replayed"
VCR, VCR_BODY = "vcrpy, bodies not compared", "vcrpy, bodies compared"
VCR_ROUNDS = 3
"""Whole runs of 50 turns that vcrpy replays with bodies compared; each takes some seconds."""
MANY, MANY_TURNS, MANY_ROUNDS = 100, 20, 5
HEADER = ("", "wall", "CPU, process")
PARTS: tuple[Part, ...] = ("wall_ns", "process_ns")


def sections() -> Iterator[Section]:
    """Measure everything about replaying."""
    with tempfile.TemporaryDirectory() as name:
        short, long = Path(name, "short"), Path(name, "long")
        _apart(_write, short, SHORT)
        yield _short(short)
        if importlib.util.find_spec("vcr") is not None:
            yield _apart(_beside_vcr, short)
        _apart(_write, long, LONG)
        yield _long(_apart(_play, long), find_fixture(long).stat().st_size)
        yield _many(Path(name))


def _apart(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a process of its own, whose memory is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _write(folder: Path, turns: int, entry: str | None = None) -> None:
    """Write the fixture of a session in which the agent asks what `run` asks; `entry` starts it."""
    exchanges = []
    messages = history(0, SIZE)
    headers = _request_headers()
    for turn in range(1, turns + 1):
        question = Question("POST", "/v1/messages", headers, request_body(messages))
        chunks = tuple(Chunk(data, 0) for data in answer(turn, SIZE))
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
    given = None if entry is None else dict[str, Any]()
    made = Recording("0" * 32, "made", entry, given, "completed", None, None, 0, tuple(exchanges))
    freeze(made, folder, {})


def _request_headers() -> dict[str, str]:
    """Return the headers that the SDK sends and a fixture keeps."""
    seen: list[httpx2.Request] = []
    provider = Canned([answer(1, SIZE)])

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return provider.handle_request(request)

    run(client(httpx2.Client(transport=httpx2.MockTransport(handle))), 1, SIZE)
    assert seen[0].content == request_body(history(0, SIZE)), (
        "the SDK sends another body than we make"
    )
    return kept_request_headers(seen[0].headers)


def _answers(turns: int) -> list[list[bytes]]:
    return [answer(turn, SIZE) for turn in range(1, turns + 1)]


def _replayed() -> Anthropic:
    """Return a recorded client, as an agent makes it; nobody is behind it."""
    return agentobs.record(canned([]))


def _short(folder: Path) -> Section:
    """Compare whole runs, loading the fixture each time."""
    answers = _answers(SHORT)

    def alone(_: int) -> Cost:
        return cost_of(lambda: run(canned(answers), SHORT, SIZE))

    def replayed(_: int) -> Cost:
        return cost_of(partial(_replay, folder))

    variants = {ALONE: alone, AGAIN: alone, REPLAYED: replayed}
    for each in variants.values():
        each(0)
    rounds = compare(variants, range(ROUNDS))
    rows = [(who, [ratio(rounds, who, ALONE, part) for part in PARTS]) for who in variants]
    measured, turn_ms = rows[-1][1][-1], milliseconds(rounds, ALONE, "process_ns") / SHORT
    return Section(
        f"Replaying {SHORT} turns",
        f"{ROUNDS} rounds of whole runs, the fixture loaded in each. Answered from a list the agent takes "
        f"{turn_ms:.1f} ms of CPU a turn.",
        HEADER,
        ratio_rows(rows),
        (
            Verdict(
                f"replay of {SHORT} turns, CPU, load included",
                1.05,
                measured,
                why=_why(turn_ms, measured),
            ),
        ),
    )


def _replay(folder: Path) -> None:
    with Replayer(load(folder)) as replay:
        replay.run(_agent)


def _agent() -> None:
    with agentobs.session("replayed"):
        run(_replayed(), SHORT, SIZE)


def _beside_vcr(folder: Path) -> Section:
    """Compare whole runs with those of vcrpy, which loads its recording each time, too."""
    import vcr

    answers, recording = _answers(SHORT), folder / "vcr.yaml"
    matched = {VCR: vcr.VCR().match_on, VCR_BODY: (*vcr.VCR().match_on, "body")}

    def cassette(mode: str, match_on: Sequence[str]) -> Any:
        return vcr.use_cassette(
            str(recording), record_mode=mode, match_on=match_on, allow_playback_repeats=False
        )

    def asked(provider: httpx2.BaseTransport) -> None:
        answering = httpx2.MockTransport(provider.handle_request)
        run(client(httpx2.Client(transport=answering)), SHORT, SIZE)

    with cassette("all", matched[VCR]):
        asked(Canned(answers))

    def played(who: str, _: int) -> Cost:
        def work() -> None:
            with cassette("none", matched[who]):
                asked(Canned([]))

        return cost_of(work)

    def alone(_: int) -> Cost:
        return cost_of(lambda: run(canned(answers), SHORT, SIZE))

    variants: dict[str, Callable[[int], Cost]] = {
        ALONE: alone,
        REPLAYED: lambda _: cost_of(partial(_replay, folder)),
        **{who: partial(played, who) for who in matched},
    }
    rounds = compare(variants, range(VCR_ROUNDS))
    rows = [(who, [ratio(rounds, who, ALONE, part) for part in PARTS]) for who in variants]
    size, ours = recording.stat().st_size, find_fixture(folder).stat().st_size
    return Section(
        f"Replaying {SHORT} turns beside vcrpy",
        f"{VCR_ROUNDS} rounds of whole runs, each with its load. vcrpy {version('vcrpy')} does not compare bodies "
        f"unless asked. Its recording is {size / 1e6:.1f} MB, ours {ours / 1e6:.2f} MB.",
        HEADER,
        ratio_rows(rows),
    )


def _agent_of_many() -> None:
    """Be one of many agents: what their fixtures name as what starts them."""
    with agentobs.session("replayed"):
        run(_replayed(), MANY_TURNS, SIZE)


def _many(folder: Path) -> Section:
    """Compare replaying many fixtures in one process at a time and in two."""
    _apart(_write, folder / "1", MANY_TURNS, f"{__name__}:_agent_of_many")
    for number in range(2, MANY + 1):
        shutil.copytree(folder / "1", folder / str(number))
    asked = [Job(str(folder / str(number))) for number in range(1, MANY + 1)]

    def replayed(jobs: int, _: int) -> Cost:
        with contextlib.chdir(Path(__file__).parents[1]):
            done: list[Any] = []
            cost = cost_of(lambda: done.extend(replay_many(asked, jobs, 300)))
        assert {each.result for each in done} == {"matched"}, done[0]
        return cost

    one, two = "one at a time", "two at a time"
    rounds = compare({one: partial(replayed, 1), two: partial(replayed, 2)}, range(MANY_ROUNDS))
    wall = ratio(rounds, two, one, "wall_ns")
    each_ms = milliseconds(rounds, one, "wall_ns") / MANY
    return Section(
        f"Replaying {MANY} fixtures of {MANY_TURNS} turns",
        f"{MANY_ROUNDS} rounds of all of them by what `agentobs replay` does with many: each in a process of its own, "
        f"forked from one that has imported the SDK. One at a time, each takes {each_ms:.0f} ms. "
        f"The load average was {os.getloadavg()[0]:.1f}: what others do on these {os.cpu_count()} processors is in it.",
        ("", "wall"),
        ((one, "1.000"), (two, f"{wall:.3f}")),
        (
            Verdict(
                f"{MANY} fixtures two at a time, wall, over one at a time",
                1 / 1.8,
                wall,
                why="Something else ran on the second processor meanwhile.",
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Played:
    """What a replay of the long fixture cost; made in a process of its own."""

    load: Cost
    rounds: list[Round]
    """One a turn."""
    before_bytes: int
    """The most memory that the process had used before it loaded the fixture."""
    peak_bytes: int


def _play(folder: Path) -> _Played:
    """Let three agents take turns, one of them replayed."""
    before, answers = _peak(), _answers(LONG)
    fixtures: list[Fixture] = []
    loaded = cost_of(lambda: fixtures.append(load(folder)))
    with Replayer(fixtures[0]), agentobs.session("replayed"):
        clients = {who: canned(answers) for who in (ALONE, AGAIN)}
        clients[REPLAYED] = _replayed()
        agents = {who: steps(each, LONG, SIZE) for who, each in clients.items()}

        def step(who: str, _: int) -> Cost:
            return cost_of(partial(next, agents[who]))

        rounds = compare({who: partial(step, who) for who in agents}, range(LONG))
    return _Played(loaded, rounds, before, _peak())


def _peak() -> int:
    """Return the most memory that this process has used, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


def _long(played: _Played, size: int) -> Section:
    """Tell what the long replay cost, a block of turns a row."""
    blocks = [played.rounds[at : at + BLOCK] for at in range(0, LONG, BLOCK)]
    shown = [
        (f"turns {1 + at * BLOCK} to {(at + 1) * BLOCK}", _of(b)) for at, b in enumerate(blocks)
    ]
    whole = _whole(blocks, played.load)
    turn_ms = milliseconds(played.rounds, ALONE, "process_ns")
    rows = [*shown, ("**all, with the load of the fixture**", whole)]
    ideal = sum(len(b"".join(answer(turn, SIZE))) for turn in range(1, LONG + 1))
    ideal += len(request_body(history(LONG - 1, SIZE)))
    return Section(
        f"Replaying {LONG:,} turns",
        "Three agents take turns in one process of their own, so that each turn is a round, and a row is the median "
        "over its turns; the last row weighs them by what they cost. Answered from a list the agent takes "
        f"{milliseconds(blocks[-1], ALONE, 'process_ns'):.0f} ms of CPU a turn at the end. The content that the "
        f"fixture holds, each answer and each message once, is {ideal / 1e6:.1f} MB. Before it was loaded, the process "
        f"had used {played.before_bytes / 1e6:.0f} MB.",
        ("", "replayed, wall", "replayed, CPU", "again, wall", "again, CPU"),
        ratio_rows(rows),
        (
            Verdict(
                f"replay of {LONG:,} turns, CPU, load included",
                1.05,
                whole[1],
                why=_why(turn_ms, whole[1]),
            ),
            Verdict(f"fixture of {LONG:,} turns", 6.0, size / 1e6, "{:.2f} MB"),
            Verdict("loading it, wall", 1.0, played.load.wall_ns / 1e9, "{:.2f} s"),
            Verdict("peak memory of the process", 200, played.peak_bytes / 1e6, "{:.0f} MB"),
        ),
    )


def _of(rounds: list[Round]) -> list[float]:
    """Return wall and CPU of the replayed agent, then of the second canned one, over the first one's."""
    return [ratio(rounds, who, ALONE, part) for who in (REPLAYED, AGAIN) for part in PARTS]


def _whole(blocks: list[list[Round]], load: Cost) -> list[float]:
    """Return the same of all turns: each block weighs what it costs, and the load is the replay's."""
    floors = [total(rounds, ALONE) for rounds in blocks]
    floor = sum(floors, Cost())
    loads = (load.wall_ns / floor.wall_ns, load.process_ns / floor.process_ns, 0.0, 0.0)
    weights = [each.process_ns / floor.process_ns for each in floors]
    sums = [
        sum(w * r for w, r in zip(weights, column, strict=True))
        for column in zip(*map(_of, blocks), strict=True)
    ]
    return [each + more for each, more in zip(sums, loads, strict=True)]


def _why(turn_ms: float, measured: float) -> str:
    ours = turn_ms * (measured - 1)
    return (
        f"A turn of {SIZE.deltas} deltas costs the SDK {turn_ms:.1f} ms, and replaying it {ours:.2f} ms: its lines are "
        "read from the file, its request is rebuilt and compared, its exchange is put together; most of that does not "
        "grow with the history, so that it shows where turns are cheap."
    )

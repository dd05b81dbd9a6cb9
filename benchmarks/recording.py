"""What recording costs: streamed calls and whole sessions of the SDK, alone and recorded."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import httpx2
from anthropic import Anthropic

import agentobs
from agentobs.recording.session import start_recorder
from benchmarks.conversation import (
    Size,
    answer,
    ask,
    ask_plainly,
    history,
    request_body,
    run,
    steps,
    turn_of,
)
from benchmarks.measure import PARTS, Cost, Round, compare, cost_of, milliseconds, ratio
from benchmarks.provider import KEY, URL, BareTee, Canned, client
from benchmarks.report import Section, Verdict, ratio_rows

SIZE = Size(deltas=300, result_bytes=12_000)
"""About what an agent that writes code sends and gets in a turn: 200 turns are 2.7 MB of new content."""
ANSWERS = 20
"""Different answers that the provider gives in turn."""
THINKING_S = 0.05
"""What a fast provider takes until its answer begins, in seconds. Real ones take more."""
ALONE, AGAIN, TEED, RECORDED = "the SDK alone", "again", "only teed", "recorded"
HEADER = ("", "wall", "CPU, caller's thread", "CPU, process")

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Bench:
    clients: dict[str, Anthropic]
    """By the name of the variant."""
    http: dict[str, httpx2.Client]
    """What they send with."""
    providers: Sequence[Canned]
    """What answers them."""
    flush: Callable[[], object]
    """Waits until the recorder has written everything."""

    def settle(self, who: str) -> Callable[[], object] | None:
        return self.flush if who == RECORDED else None


def sections() -> Iterator[Section]:
    """Measure everything about recording."""
    with _bench() as bench:
        yield _calls(bench, "messages.stream", ask, 100, rounds=80)
        yield _calls(bench, "messages.create(stream=True)", ask_plainly, 100, rounds=80)
        yield _calls(bench, "messages.stream", ask, 1000, rounds=25)
        yield _turns(bench, 60, sessions=5)
        yield _sessions(bench, 60, rounds=7)
        yield _first_chunks(bench, 100, rounds=100)


@contextmanager
def _bench() -> Iterator[_Bench]:
    answers = [answer(turn, SIZE) for turn in range(1, ANSWERS + 1)]
    transports = {who: Canned(answers) for who in (ALONE, AGAIN, TEED, RECORDED)}
    http = {who: httpx2.Client(transport=each) for who, each in transports.items()}
    http[TEED] = httpx2.Client(transport=BareTee(transports[TEED]))
    with tempfile.TemporaryDirectory() as home:
        agentobs.record(http[RECORDED], home=home)
        recorder = start_recorder(home)
        assert recorder is not None, "the home cannot be used"
        try:
            clients = {who: client(each) for who, each in http.items()}
            yield _Bench(clients, http, list(transports.values()), partial(recorder.flush, 60.0))
        finally:
            agentobs.stop_recorder()
        assert recorder.statistics().dropped == 0, "what was measured is not all that was asked"


def _calls(
    bench: _Bench, name: str, how: Callable[[Anthropic, Messages], object], turns: int, rounds: int
) -> Section:
    """Compare single calls that go on a conversation of `turns` turns."""

    def call(who: str, messages: Messages) -> Cost:
        return cost_of(partial(how, bench.clients[who], messages), bench.settle(who))

    base = history(turns, SIZE)
    with agentobs.session("calls"):
        for who in bench.clients:
            call(who, base)
        variants = {who: partial(call, who) for who in bench.clients}
        measured = compare(variants, _longer(base, rounds))
    verdicts = [_caller(f"a call at {turns:,} turns by `{name}`", measured)]
    if turns == 1000:
        verdicts.append(_everything(f"a call at {turns:,} turns", measured, 1.02))
    return Section(
        f"One call by `{name}` after {turns:,} turns",
        f"{rounds} rounds; the SDK alone takes {milliseconds(measured, ALONE, 'process_ns'):.1f} ms of CPU. "
        f"Each answer has {SIZE.deltas} deltas, each a chunk; each round adds a turn with a tool result of "
        f"{SIZE.result_bytes // 1000} KB. The first request of a session, which the recorder reads whole, came "
        "before.",
        HEADER,
        ratio_rows(_ratios(measured)),
        tuple(verdicts),
    )


def _longer(base: Messages, turns: int) -> Iterator[Messages]:
    """Yield the conversation with one more turn, and one more, so many times."""
    messages = base
    for turn in range(turns):
        messages = messages + turn_of(1_000_000 + turn, SIZE)
        yield messages


def _turns(bench: _Bench, turns: int, sessions: int) -> Section:
    """Compare the turns of sessions; before the next turn, the recorder has done its work."""
    measured = [each for _ in range(sessions) for each in _session_turns(bench, turns)]
    what = f"a turn of a session of {turns}"
    return Section(
        f"The turns of a session of {turns}",
        f"{sessions} sessions, from the first turn to the last, in which the variants take turns; {len(measured)} "
        f"rounds of one turn. The SDK alone takes {milliseconds(measured, ALONE, 'process_ns'):.1f} ms of CPU a turn. "
        "The recorder's thread works between the turns, as it does while a provider thinks.",
        HEADER,
        ratio_rows(_ratios(measured)),
        (_caller(what, measured), _everything(what, measured, 1.03)),
    )


def _session_turns(bench: _Bench, turns: int) -> list[Round]:
    agents = {who: steps(each, turns, SIZE) for who, each in bench.clients.items()}

    def turn(who: str, _: int) -> Cost:
        return cost_of(partial(next, agents[who]), bench.settle(who))

    with agentobs.session("turns"):
        return compare({who: partial(turn, who) for who in agents}, range(turns))


def _sessions(bench: _Bench, turns: int, rounds: int) -> Section:
    """Compare whole sessions without a pause, from the first request to the journal on disk."""

    def session(who: str, _: int) -> Cost:
        work = partial(run, bench.clients[who], turns, SIZE)
        return cost_of(partial(_recorded, work) if who == RECORDED else work, bench.settle(who))

    session(RECORDED, 0)
    measured = compare({who: partial(session, who) for who in bench.clients}, range(rounds))
    return Section(
        f"A whole session of {turns} turns without a pause",
        f"{rounds} rounds, until the last record is in the journal. The provider answers at once, which none does: the "
        "recorder's thread finds no pause to work in, and competes with the caller for the interpreter. The worst "
        "case, and a noisy one: it decides nothing.",
        HEADER,
        ratio_rows(_ratios(measured)),
    )


def _recorded(work: Callable[[], None]) -> None:
    with agentobs.session("session"):
        work()


def _first_chunks(bench: _Bench, turns: int, rounds: int) -> Section:
    """Compare how long the first chunk of an answer takes from the client's transport to the SDK."""

    def wait(who: str, body: bytes) -> Cost:
        started = time.perf_counter_ns()
        with bench.http[who].stream(
            "POST", URL, headers={"x-api-key": KEY}, content=body
        ) as answered:
            chunks = answered.iter_raw()
            next(chunks)
            came = time.perf_counter_ns()
            for _ in chunks:
                pass
        if settle := bench.settle(who):
            settle()
        return Cost(came - started)

    def waits(thinking_s: float) -> list[Round]:
        for each in bench.providers:
            each.thinking_s = thinking_s
        variants = {who: partial(wait, who) for who in bench.http}
        return compare(variants, map(request_body, _longer(history(turns, SIZE), rounds)))

    with agentobs.session("first chunks"):
        usual, at_once = waits(THINKING_S), waits(0.0)
    added = {who: (_added_ms(usual, who), _added_ms(at_once, who)) for who in bench.http}
    return Section(
        "The first token",
        f"{rounds} rounds, {turns} turns of history: from handing the request to httpx2 until the first chunk comes "
        "out of it, wall time, the median over the rounds of the difference. The SDK is left out: it builds a request "
        f"for some 10 ms before. Of a provider that answers at once, httpx2 alone takes "
        f"{milliseconds(at_once, ALONE, 'wall_ns'):.2f} ms.",
        (
            "",
            f"added, of a provider that takes {THINKING_S * 1e3:.0f} ms",
            "added, of one that takes none",
        ),
        tuple((who, *(f"{ms:+.3f} ms" for ms in both)) for who, both in added.items()),
        (
            Verdict(
                f"delay of the first token, of a provider that takes {THINKING_S * 1e3:.0f} ms",
                0.1,
                added[RECORDED][0],
                "{:.3f} ms",
                "Noting the request, who asks and the head of the answer takes 0.07 ms where the processor has all of "
                "it at hand, and three times that where it has turned to others meanwhile.",
            ),
            Verdict(
                "delay of the first token, of a provider that takes no time",
                0.1,
                added[RECORDED][1],
                "{:.3f} ms",
                "As above.",
            ),
        ),
    )


def _added_ms(rounds: list[Round], who: str) -> float:
    return median(each[who].wall_ns - each[ALONE].wall_ns for each in rounds) / 1e6


def _ratios(rounds: list[Round]) -> list[tuple[str, list[float]]]:
    return [(who, [ratio(rounds, who, ALONE, part) for part in PARTS]) for who in rounds[0]]


def _caller(what: str, rounds: list[Round]) -> Verdict:
    measured = ratio(rounds, RECORDED, ALONE, "thread_ns")
    ours = milliseconds(rounds, ALONE, "thread_ns") * (measured - 1)
    why = (
        f"Ours are {ours:.2f} ms: two appends a delta, the exchange put together once a call, and caches that the "
        "recorder's thread has used."
    )
    return Verdict(f"recording {what}, CPU of the caller's thread", 1.02, measured, why=why)


def _everything(what: str, rounds: list[Round], target: float) -> Verdict:
    measured = ratio(rounds, RECORDED, ALONE, "process_ns")
    behind = median(each[RECORDED].process_ns - each[RECORDED].thread_ns for each in rounds) / 1e6
    why = (
        f"The recorder's thread works {behind:.1f} ms a call, while the caller waits for the provider: it compares the "
        "request with the one before, scans what is new for secrets, reads the facts off the stream, and writes all of "
        "it as JSON with a digest; in Python each pass costs some hundredths of the SDK's call."
    )
    return Verdict(f"recording {what}, CPU of the process", target, measured, why=why)

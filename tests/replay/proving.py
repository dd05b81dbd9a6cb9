"""Proving by generation: record an agent, freeze the recording, replay it in noise, and change one thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.provider.registry import kept_request_headers
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.canonical_json import canonical
from agentobs.records.exchanges import (
    ModelExchange,
    Recording,
    ToolExchange,
    WorldExchange,
)
from agentobs.sink import Record
from replay import DivergenceError, Fixture, Replayer, ReplayOptions, load
from replay.fixture.trajectory import trajectory
from replay.freeze.conversion import freeze
from tests.replay.crowd import Noise
from tests.replay.generated import Model, Script, Serving
from tests.replay.generated_agents import Change, Ran, agent_of, recording_into, run_live
from tests.replay.generated_changes import Expected, changes, points_at


@dataclass
class Recorded:
    """A script that was recorded, with what the run let be seen."""

    script: Script
    ran: Ran
    recording: Recording
    fixture: Fixture


@dataclass
class Proof:
    """What became of some seeds."""

    changed: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Reports that point elsewhere than at the change."""
    silent: list[str] = field(default_factory=list)
    """Changes that nothing was said about."""


def recorded(folder: Path, scripts: Iterable[Script], server: Serving) -> list[Recorded]:
    """Run agents against the model of their scripts, recorded, and freeze each of them."""
    ran: list[tuple[Script, Ran]] = []
    with recording_into(str(folder / "home")):
        for script in scripts:
            server.model = Model(script)
            ran.append((script, run_live(script, server.url)))
    home = existing_home(folder / "home")
    made = []
    for script, each in ran:
        recording = read_session(home, each.session_id, segment_ids(home))
        frozen = freeze(recording, folder / f"{script.kind}-{script.seed}", {"anthropic": "test"})
        made.append(Recorded(script, each, recording, load(frozen.fixture)))
    return made


def prove_same(one: Recorded) -> None:
    """Replay in noise: the same events, requests, answers and results, byte for byte."""
    agent = agent_of(one.script, None, None, Noise(one.script.seed))
    with Replayer(one.fixture) as replay:
        told = replay.run(agent.answer)
    who = f"{one.script.kind} {one.script.seed}"
    assert told == one.ran.told, who
    assert agent.ran.events == one.ran.events, who
    if one.script.stop_at is None:
        assert exchanged(replay.records) == exchanged(one.recording.exchanges), who
        assert stepped(replay.records) == stepped(one.recording.exchanges), who
    else:
        prove_stopped(one.recording.exchanges, list(replay.records))
    done = replay.progress
    assert (done.requests_matched, done.tools_matched, done.answers_matched) == (
        done.requests, done.tools, done.answers,
    ), who  # fmt: skip


Exchanged = dict[str, list[tuple[Any, ...]]]
WAITS = ("retry-after", "retry-after-ms")
"""Headers that a replay replaces for agents that are not ours, so that nobody waits."""


def exchanged(records: Iterable[Record]) -> Exchanged:
    """Return all that was asked and answered: requests in the order of their lanes, the rest by what it is about.

    The bytes are all there. In a lane whose requests overlapped, their order is chance, and they are sorted.
    """
    found: Exchanged = {}
    for each in records:
        match each:
            case ModelExchange(place, question=asked, answer=answer):
                heard = {k: v for k, v in answer.headers.items() if k not in WAITS}
                found.setdefault(place.lane, []).append(
                    (
                        asked.method,
                        asked.path,
                        canonical(_meant(asked.headers)),
                        asked.body,
                        answer.status,
                        canonical(heard),
                        answer.body,
                        answer.ending,
                        answer.failure and answer.failure.name,
                    )
                )
            case ToolExchange(place, question=call, answer=result):
                told = [call.name, call.input, result.content, result.is_error, result.outcome]
                found.setdefault(f"tools {place.lane}", []).append(
                    (call.tool_use_id, place.turn, canonical(told), result.attempts)
                )
            case WorldExchange(place, question=question):
                told = [question.asked, each.answer]
                found.setdefault(f"world {place.lane}", []).append(
                    (question.kind, question.key, place.turn, canonical(told))
                )
            case _:
                pass
    return {
        name: sorted(told, key=repr) if " " in name or not _is_ours(told) else told
        for name, told in found.items()
    }


def prove_stopped(live: Iterable[Record], again: Iterable[Record]) -> None:
    """Compare runs that were stopped: how much of an answer had come by then was chance, all else is the same."""
    asked, now = (_requests(records) for records in (live, again))
    for lane in asked.keys() | now.keys():
        old, new = asked.get(lane, []), now.get(lane, [])
        for one, other in zip(old, new, strict=False):
            assert one.question.body == other.question.body, lane
            bodies = sorted((one.answer.body, other.answer.body), key=len)
            assert bodies[1].startswith(bodies[0]), lane
        for left in (*old[len(new) :], *new[len(old) :]):
            assert left.answer.ending == "cancelled", lane
    rest = [_told(records) for records in (live, again)]
    assert rest[0] == rest[1]


def _requests(records: Iterable[Record]) -> dict[str, list[ModelExchange]]:
    found: dict[str, list[ModelExchange]] = {}
    for each in records:
        if isinstance(each, ModelExchange):
            found.setdefault(each.place.lane, []).append(each)
    return found


def _told(records: Iterable[Record]) -> Exchanged:
    """Return all but the requests; where a run stopped, it may not know whether its request had gone out."""
    return {
        name: [
            tuple(str(part).replace(":unsent:", ":streaming:") for part in each[:2])
            for each in told
        ]
        for name, told in exchanged(records).items()
        if " " in name
    }


def _meant(headers: dict[str, str]) -> dict[str, str]:
    kept = kept_request_headers(headers)
    return {k: v for k, v in kept.items() if not k.startswith("x-stainless-")}


def _is_ours(told: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether requests are those of our loop, whose lanes have one request at a time."""
    return all(b"Have it:" not in each[3] for each in told)


def stepped(records: Iterable[Record]) -> list[str]:
    """Return the lines of a trajectory of what was asked and answered, sorted."""
    kinds = (ModelExchange, ToolExchange, WorldExchange)
    return sorted(trajectory(e for e in records if isinstance(e, kinds)).splitlines())


def prove_changed(one: Recorded, proof: Proof, seed: int | None = None) -> None:
    """Change one thing: the replay diverges, and the report points at it."""
    seed = one.script.seed if seed is None else seed
    drawn: Iterator[tuple[Change, Expected]] = iter(changes(one.script, one.fixture, seed))
    change, expected = next(drawn)
    proof.changed += 1
    proof.kinds[change.kind] = proof.kinds.get(change.kind, 0) + 1
    what = f"{one.script.kind} {one.script.seed}: {change}"
    agent = agent_of(one.script, None, change, Noise(seed))
    try:
        with Replayer(one.fixture, ReplayOptions(tools=expected.tools or "recorded")) as replay:
            replay.run(agent.answer)
    except DivergenceError as error:
        if not points_at(error.divergence, expected):
            proof.missed.append(f"{what}\nexpected {expected}\n{error.divergence.text()}")
    else:
        proof.silent.append(f"{what}\nexpected {expected}")

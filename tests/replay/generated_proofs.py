"""Proofs with generated agents: record an agent, freeze the recording, replay it under noise, and change one thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.provider.registry import recorded_request_headers
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
from tests.replay.generated_agents import Change, RunResult, agent_of, recording_into, run_live
from tests.replay.generated_changes import Expected, changes, points_at
from tests.replay.generated_scripts import Model, ModelServer, Script
from tests.replay.nested_agents import Noise


@dataclass
class Recorded:
    """A recorded script with the results of its run."""

    script: Script
    ran: RunResult
    recording: Recording
    fixture: Fixture


@dataclass
class Proof:
    """The results for several seeds."""

    changed: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Reports that name a different place than the place of the change."""
    silent: list[str] = field(default_factory=list)
    """Changes that no report mentions."""


def record_scripts(folder: Path, scripts: Iterable[Script], server: ModelServer) -> list[Recorded]:
    """Run and record an agent for each script, and freeze the recordings."""
    ran: list[tuple[Script, RunResult]] = []
    with recording_into(str(folder / "home")):
        for script in scripts:
            server.model = Model(script)
            ran.append((script, run_live(script, server.url)))
    home = existing_home(folder / "home")
    recordings = []
    for script, each in ran:
        recording = read_session(home, each.session_id, segment_ids(home))
        frozen = freeze(recording, folder / f"{script.kind}-{script.seed}", {"anthropic": "test"})
        recordings.append(Recorded(script, each, recording, load(frozen.fixture)))
    return recordings


def prove_same(recorded: Recorded) -> None:
    """Replay under noise, and check that events, requests, responses and results are identical byte for byte."""
    agent = agent_of(recorded.script, None, None, Noise(recorded.script.seed))
    with Replayer(recorded.fixture) as replay:
        results = replay.run(agent.answer)
    name = f"{recorded.script.kind} {recorded.script.seed}"
    assert results == recorded.ran.results, name
    assert agent.ran.events == recorded.ran.events, name
    if recorded.script.stop_at is None:
        assert exchanged(replay.records) == exchanged(recorded.recording.exchanges), name
        assert trajectory_lines(replay.records) == trajectory_lines(recorded.recording.exchanges), (
            name
        )
    else:
        prove_stopped(recorded.recording.exchanges, list(replay.records))
    done = replay.progress
    assert (done.requests_matched, done.tools_matched, done.answers_matched) == (
        done.requests, done.tools, done.answers,
    ), name  # fmt: skip


Exchanged = dict[str, list[tuple[Any, ...]]]
WAITS = ("retry-after", "retry-after-ms")
"""Headers that a replay replaces so that third-party agents do not wait."""


def exchanged(records: Iterable[Record]) -> Exchanged:
    """Return all exchanges: requests in the order of their lanes, other exchanges by subject.

    Bodies are included as bytes. In a lane whose requests overlapped, the order is arbitrary, so the requests are
    sorted.
    """
    found: Exchanged = {}
    for each in records:
        match each:
            case ModelExchange(place, question=request, answer=answer):
                headers = {k: v for k, v in answer.headers.items() if k not in WAITS}
                found.setdefault(place.lane, []).append(
                    (
                        request.method,
                        request.path,
                        canonical(_relevant_headers(request.headers)),
                        request.body,
                        answer.status,
                        canonical(headers),
                        answer.body,
                        answer.ending,
                        answer.failure and answer.failure.name,
                    )
                )
            case ToolExchange(place, question=call, answer=result):
                facts = [call.name, call.input, result.content, result.is_error, result.outcome]
                found.setdefault(f"tools {place.lane}", []).append(
                    (call.tool_use_id, place.turn, canonical(facts), result.attempts)
                )
            case WorldExchange(place, question=question):
                facts = [question.payload, each.answer]
                found.setdefault(f"world {place.lane}", []).append(
                    (question.kind, question.key, place.turn, canonical(facts))
                )
            case _:
                pass
    return {
        name: sorted(exchanges, key=repr)
        if " " in name or not _is_agent_loop(exchanges)
        else exchanges
        for name, exchanges in found.items()
    }


def prove_stopped(live: Iterable[Record], replayed: Iterable[Record]) -> None:
    """Compare stopped runs: only the received part of a response, and canceled requests at the end, may differ."""
    old_lanes, new_lanes = (_requests(records) for records in (live, replayed))
    for lane in old_lanes.keys() | new_lanes.keys():
        old, new = old_lanes.get(lane, []), new_lanes.get(lane, [])
        for before, after in zip(old, new, strict=False):
            assert before.question.body == after.question.body, lane
            bodies = sorted((before.answer.body, after.answer.body), key=len)
            assert bodies[1].startswith(bodies[0]), lane
        for additional in (*old[len(new) :], *new[len(old) :]):
            assert additional.answer.ending == "cancelled", lane
    rest = [_exchanges_without_requests(records) for records in (live, replayed)]
    assert rest[0] == rest[1]


def _requests(records: Iterable[Record]) -> dict[str, list[ModelExchange]]:
    found: dict[str, list[ModelExchange]] = {}
    for each in records:
        if isinstance(each, ModelExchange):
            found.setdefault(each.place.lane, []).append(each)
    return found


def _exchanges_without_requests(records: Iterable[Record]) -> Exchanged:
    """Return all exchanges except the requests. A stopped run may not know whether its request was sent."""
    return {
        name: [
            tuple(str(part).replace(":unsent:", ":streaming:") for part in each[:2])
            for each in exchanges
        ]
        for name, exchanges in exchanged(records).items()
        if " " in name
    }


def _relevant_headers(headers: dict[str, str]) -> dict[str, str]:
    kept = recorded_request_headers(headers)
    return {k: v for k, v in kept.items() if not k.startswith("x-stainless-")}


def _is_agent_loop(exchanges: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether requests come from the agent loop, whose lanes have one request at a time."""
    return all(b"Have it:" not in each[3] for each in exchanges)


def trajectory_lines(records: Iterable[Record]) -> list[str]:
    """Return the sorted lines of a trajectory of these exchanges."""
    kinds = (ModelExchange, ToolExchange, WorldExchange)
    return sorted(trajectory(e for e in records if isinstance(e, kinds)).splitlines())


def prove_changed(recorded: Recorded, proof: Proof, seed: int | None = None) -> None:
    """Change one thing, and check that the replay diverges and that the report names the place of the change."""
    seed = recorded.script.seed if seed is None else seed
    drawn: Iterator[tuple[Change, Expected]] = iter(
        changes(recorded.script, recorded.fixture, seed)
    )
    change, expected = next(drawn)
    proof.changed += 1
    proof.kinds[change.kind] = proof.kinds.get(change.kind, 0) + 1
    description = f"{recorded.script.kind} {recorded.script.seed}: {change}"
    agent = agent_of(recorded.script, None, change, Noise(seed))
    try:
        with Replayer(
            recorded.fixture, ReplayOptions(tools=expected.tools or "recorded")
        ) as replay:
            replay.run(agent.answer)
    except DivergenceError as error:
        if not points_at(error.divergence, expected):
            proof.missed.append(f"{description}\nexpected {expected}\n{error.divergence.text()}")
    else:
        proof.silent.append(f"{description}\nexpected {expected}")

"""Generated agents: recordings replay byte for byte, and the report of a change names the place of the change."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.replay import generated_agents
from tests.replay.generated_proofs import Proof, prove_changed, prove_same, record_scripts
from tests.replay.generated_scripts import ModelServer, Script, model_server, script_of

BATCH = 10
"""The number of seeds that are recorded into one home."""
LONG_BATCH = 250
"""The number of seeds of each long test."""
CONCURRENT = 15
"""The number of scripts with several concurrent agents."""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def prove(folder: Path, server: ModelServer, seeds: range) -> Proof:
    """Record several seeds, and check that each replays and that each change is reported."""
    proof = Proof()
    for recorded in record_scripts(folder, map(script_of, seeds), server):
        prove_same(recorded)
        prove_changed(recorded, proof)
    return proof


SEEDS = range(0, 100, BATCH)
"""The first seed of each batch. An ordinary run covers the first batch, a soak run covers all batches."""


@pytest.mark.parametrize(
    "first",
    [
        *SEEDS[:1],
        *(pytest.param(each, marks=pytest.mark.soak) for each in SEEDS if each not in SEEDS[:1]),
    ],
)
def test_generated_agents_replay_and_changes_are_located(
    tmp_path: Path, server: ModelServer, first: int
) -> None:
    """Each generated agent replays identically under noise, and after one change, the report names the place of the
    change.
    """
    proof = prove(tmp_path, server, range(first, first + BATCH))
    assert proof.changed == BATCH
    assert not proof.silent, "\n".join(proof.silent)
    assert not proof.missed, "\n".join(proof.missed)


class SequentialPool(ThreadPoolExecutor):
    """A pool with one thread, whatever size was requested, so that its jobs never overlap."""

    def __init__(self, _: int) -> None:
        super().__init__(1)


@pytest.mark.soak
def test_agents_that_ran_sequentially_replay_concurrently(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that were recorded one after the other replay concurrently under noise, and each change is reported.

    This happens on a busy machine: no requests overlapped in the recording, although several agents with identical
    prompts could have run concurrently.
    """
    proof = Proof()
    scripts = [
        each
        for each in (script_of(seed, "threads") for seed in range(200))
        if has_concurrent_agents(each)
    ]
    with monkeypatch.context() as patched:
        patched.setattr(generated_agents, "ThreadPoolExecutor", SequentialPool)
        recordings = record_scripts(tmp_path, scripts[:CONCURRENT], server)
    for recorded in recordings:
        prove_same(recorded)
        prove_changed(recorded, proof)
    assert proof.changed == CONCURRENT
    assert not proof.silent, "\n".join(proof.silent)
    assert not proof.missed, "\n".join(proof.missed)


def has_concurrent_agents(script: Script) -> bool:
    """Return whether any response starts several agents with the same task."""
    return any(len(copies) > 1 for copies in script.tasks.values())


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1000, 2000, LONG_BATCH))
def test_a_thousand_seeds(
    tmp_path: Path, server: ModelServer, capsys: pytest.CaptureFixture, seed: int
) -> None:
    """Of a thousand generated agents, each replays, each change is reported, and at least 99 % of reports name the
    exact place.
    """
    proof = Proof()
    for first in range(seed, seed + LONG_BATCH, BATCH):
        more = prove(tmp_path / str(first), server, range(first, first + BATCH))
        proof.changed += more.changed
        proof.missed += more.missed
        proof.silent += more.silent
    with capsys.disabled():
        print("\n\n".join(proof.missed))
    assert proof.changed == LONG_BATCH
    assert not proof.silent, "\n".join(proof.silent)
    assert len(proof.missed) <= LONG_BATCH // 100

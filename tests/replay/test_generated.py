"""Generated agents: what was recorded replays byte for byte, and one change is found at its place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.replay import generated_agents
from tests.replay.generated import Script, Serving, drawn, serving
from tests.replay.proving import Proof, prove_changed, prove_same, recorded

BATCH = 10
"""Seeds that are recorded into one home."""
CROWDED = 15
"""Scripts with several agents at once."""


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as server:
        yield server


def proven(folder: Path, server: Serving, seeds: range) -> Proof:
    """Record some seeds, and prove both of each."""
    proof = Proof()
    for one in recorded(folder, map(drawn, seeds), server):
        prove_same(one)
        prove_changed(one, proof)
    return proof


SEEDS = range(0, 100, BATCH)
"""The first seed of each batch: a fifth of them in each run, all of them in a long one."""


@pytest.mark.parametrize(
    "first",
    [
        *SEEDS[:1],
        *(pytest.param(each, marks=pytest.mark.soak) for each in SEEDS if each not in SEEDS[:1]),
    ],
)
def test_seeds_replay_and_diverge(tmp_path: Path, server: Serving, first: int) -> None:
    """Each seed replays identically in noise; with one change each, the report points at it."""
    proof = proven(tmp_path, server, range(first, first + BATCH))
    assert proof.changed == BATCH
    assert not proof.silent, "\n".join(proof.silent)
    assert not proof.missed, "\n".join(proof.missed)


class OneByOne(ThreadPoolExecutor):
    """A pool of one thread, whatever was asked for: what it runs never meets."""

    def __init__(self, _: int) -> None:
        super().__init__(1)


@pytest.mark.soak
def test_agents_that_never_met_replay_beside_each_other(
    tmp_path: Path, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of agents that could have run at once, one after the other was recorded, as a busy machine has it.

    Nothing overlapped, and some began with the very same words: they replay in noise and at once all the same, and one
    change each is found.
    """
    proof = Proof()
    scripts = [each for each in (drawn(seed, "threads") for seed in range(200)) if crowded(each)]
    with monkeypatch.context() as patched:
        patched.setattr(generated_agents, "ThreadPoolExecutor", OneByOne)
        made = recorded(tmp_path, scripts[:CROWDED], server)
    for one in made:
        prove_same(one)
        prove_changed(one, proof)
    assert proof.changed == CROWDED
    assert not proof.silent, "\n".join(proof.silent)
    assert not proof.missed, "\n".join(proof.missed)


def crowded(script: Script) -> bool:
    """Return whether one answer starts several agents, with the very same task."""
    return any(len(copies) > 1 for copies in script.tasks.values())


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_seeds(tmp_path: Path, server: Serving, capsys: pytest.CaptureFixture) -> None:
    """As above: nothing is silent, and at least 99 of 100 reports point at the exact place."""
    proof = Proof()
    for first in range(1000, 2000, BATCH):
        more = proven(tmp_path / str(first), server, range(first, first + BATCH))
        proof.changed += more.changed
        proof.missed += more.missed
        proof.silent += more.silent
    with capsys.disabled():
        print("\n\n".join(proof.missed))
    assert proof.changed == 1000
    assert not proof.silent, "\n".join(proof.silent)
    assert len(proof.missed) <= 10

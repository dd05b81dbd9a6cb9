"""Generated agents: what was recorded replays byte for byte, and one change is found at its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay.generated import Serving, drawn, serving
from tests.replay.proving import Proof, prove_changed, prove_same, recorded

BATCH = 10
"""Seeds that are recorded into one home."""


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


@pytest.mark.parametrize("first", range(0, 100, BATCH))
def test_seeds_replay_and_diverge(tmp_path: Path, server: Serving, first: int) -> None:
    """Each seed replays identically in noise; with one change each, the report points at it."""
    proof = proven(tmp_path, server, range(first, first + BATCH))
    assert proof.changed == BATCH
    assert not proof.silent, "\n".join(proof.silent)
    assert not proof.missed, "\n".join(proof.missed)


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

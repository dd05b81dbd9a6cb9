"""Simulations: all invariants hold, whatever fails; see `tests/simulation/__init__.py`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.command import add, described
from tests.simulation.defects import DEFECTS
from tests.simulation.disk import Disk
from tests.simulation.minimization import minimized
from tests.simulation.plan import plan
from tests.simulation.simulation import simulate


def run(seeds: range) -> Counter[str]:
    """Simulate some seeds; fail with the shortest plan of the first seed that breaks an invariant."""
    totals, faults = Counter[str](), Counter[str]()
    for seed in seeds:
        result = simulate(seed)
        add(result, totals, faults)
        if result.failure:
            pytest.fail(described(result), pytrace=False)
    return totals


@pytest.mark.slow
def test_all_invariants_hold() -> None:
    """In some simulations, with faults of every kind, all invariants hold."""
    totals = run(range(13, 36))  # one of them uses DuckDB
    assert totals["calls"] > 5_000
    assert totals["faults"] > 20
    assert totals["acknowledged"] > 100


def test_a_seed_determines_all_calls() -> None:
    """The same seed makes the same system calls with the same faults."""
    for seed in (5, 10):
        first, second = simulate(seed), simulate(seed)
        assert first.calls == second.calls > 100
        assert first.digest == second.digest
    assert [str(each) for each in plan(5)] == [str(each) for each in plan(5)]


def test_a_follower_is_not_called_again_in_the_middle_of_a_look() -> None:
    """A step that runs between two system calls of a follower does not use the same follower."""
    assert simulate(6039).failure is None


def test_a_flush_reports_only_the_losses_since_the_previous_flush() -> None:
    """A flush during a hanging call reports the losses before it, so that a later True does not cover those records."""
    assert simulate(20286).failure is None


@pytest.mark.slow
def test_a_full_segment_survives_a_power_loss_if_it_cannot_be_sealed() -> None:
    """A sync after a full segment was closed on a full disk covers the records of that segment as well."""
    steps = [plan(30201)[number] for number in (4, 7, 17, 18)]
    assert [each.kind for each in steps] == ["record", "record", "flush", "power"]
    assert simulate(30201, steps).failure is None


@pytest.mark.crash
def test_a_damaged_store_without_segments_is_refused() -> None:
    """If a power loss takes the only segment and the store is damaged, an ingest leaves the store unchanged."""
    result = simulate(5244)
    assert result.failure is None
    assert {"damage", "power"} <= {each.kind for each in plan(5244)}


@pytest.mark.crash
def test_a_store_that_is_damaged_with_its_manifest_is_rebuilt() -> None:
    """If both the published file and its manifest are damaged, an ingest rebuilds the store from the segments."""
    steps = [step for step in plan(5580) if step.kind in ("record", "archive", "damage")]
    assert [each.kind for each in steps].count("damage") == 2
    assert simulate(5580, steps).failure is None


@pytest.mark.crash
def test_a_power_loss_may_tear_damage_that_was_moved_aside() -> None:
    """Damage is not synced. If a repair has moved a damaged store, a later power loss may change the moved file."""
    kinds = ("import", "ingest", "damage", "repair", "record", "power")
    steps = [step for step in plan(20088) if step.kind in kinds]
    assert {"damage", "repair", "power"} <= {step.kind for step in steps}
    assert simulate(20088, steps).failure is None


def test_a_failure_is_minimized() -> None:
    """A failing plan is printed without the steps that the failure does not need."""
    with DEFECTS["records are acknowledged without a sync"]():
        result = simulate(13)
        assert result.failure
        assert len(minimized(result)) <= 8 < result.steps
        text = described(result)
    assert "power" in text
    assert text.endswith("run it again: make simulate SEED=13")


def test_a_power_loss_keeps_what_was_synced(tmp_path: Path) -> None:
    """A synced file with a synced name keeps its bytes; unsynced bytes may be lost; an unsynced name may be missing."""
    outcomes: set[tuple[bytes | None, bool]] = set()
    for seed in range(60):
        root = tmp_path / f"{seed}"
        root.mkdir()
        disk = Disk(root, tmp_path / f"{seed}.copies")
        kept, other = root / "kept", root / "other"
        kept.write_bytes(b"synced")
        disk.created(kept)
        disk.synced(kept)
        disk.synced(root)
        kept.write_bytes(b"synced and more")
        other.write_bytes(b"x")
        disk.created(other)
        disk.lose_power(random.Random(seed))
        data = kept.read_bytes()
        assert data.startswith(b"synced")
        outcomes.add((data if data in (b"synced", b"synced and more") else None, other.exists()))
    assert {(b"synced", False), (b"synced", True), (b"synced and more", True)} <= outcomes

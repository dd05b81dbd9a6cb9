"""Planted defects: the simulation detects each of them, so it would detect similar mistakes."""

from __future__ import annotations

import pytest

from tests.marks import mark_all_but_first
from tests.simulation.defects import DEFECTS
from tests.simulation.plan import STORE_SHARE, Step
from tests.simulation.simulation import simulate

JOURNAL = {
    "records are acknowledged without a sync": 2,
    "new files are synced without their directory": 7,
    "a flush ignores failed syncs": 174,
    "an incomplete line is not cut off": 167,
    "facts are written before their content": 2,
    "some dropped records are not counted": 117,
    "a flush ignores dropped records": 5,
    "checksums are not checked": 2,
    "torn files are not reported": 2,
}
"""A seed without DuckDB that detects the defect."""
STORE = {
    "records are ingested twice": 12,
    "segments of running processes are compressed": 12,
    "a generation is published without a sync": 60,
}
"""A seed with DuckDB that detects the defect."""
SEEDS_MAX = 60
"""The maximum number of seeds with DuckDB that the long test tries."""


@pytest.mark.parametrize("defect", mark_all_but_first(JOURNAL, pytest.mark.slow, kept=3))
def test_a_defect_of_the_journal_is_detected(defect: str) -> None:
    """The seed fails if the defect is planted, and only then."""
    seed = JOURNAL[defect]
    with DEFECTS[defect]():
        assert simulate(seed).failure
    assert simulate(seed).failure is None


@pytest.mark.crash
@pytest.mark.parametrize("defect", STORE)
def test_a_defect_of_the_store_is_detected(defect: str) -> None:
    """The seed fails if the defect is planted, and only then."""
    seed = STORE[defect]
    with DEFECTS[defect]():
        assert simulate(seed).failure
    assert simulate(seed).failure is None


@pytest.mark.crash
def test_an_early_deletion_of_a_plain_file_is_detected() -> None:
    """If a plain file is deleted before the name of its compressed form is durable, a power loss loses both."""
    kinds = ("record", "flush", "close", "ingest", "power")
    steps = [Step(kind, f"23:{number}") for number, kind in enumerate(kinds)]
    with DEFECTS["the plain file is deleted before the directory is synced"]():
        assert "lost: " in str(simulate(23, steps).failure)
    assert simulate(23, steps).failure is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("defect", [*JOURNAL, *STORE])
def test_seeds_detect_each_defect(defect: str) -> None:
    """At least one of the first seeds detects the defect, even after a change of the plans."""
    journal = (seed for seed in range(1, 400) if seed % STORE_SHARE)
    store = range(STORE_SHARE, STORE_SHARE * SEEDS_MAX, STORE_SHARE)
    with DEFECTS[defect]():
        assert any(simulate(seed).failure for seed in (store if defect not in JOURNAL else journal))

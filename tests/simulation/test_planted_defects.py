"""Planted defects: the simulation detects each of them, so it would detect similar mistakes."""

from __future__ import annotations

import pytest

from tests.simulation.defects import DEFECTS
from tests.simulation.plan import STORE_SHARE
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
}
"""A seed with DuckDB that detects the defect."""
SEEDS_MAX = 60
"""How many seeds with DuckDB the long test tries at most."""


@pytest.mark.parametrize("defect", JOURNAL)
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


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("defect", DEFECTS)
def test_seeds_detect_each_defect(defect: str) -> None:
    """Some of the first seeds detect the defect, whichever they are after a change of the plans."""
    journal = (seed for seed in range(1, 400) if seed % STORE_SHARE)
    store = range(STORE_SHARE, STORE_SHARE * SEEDS_MAX, STORE_SHARE)
    with DEFECTS[defect]():
        assert any(simulate(seed).failure for seed in (store if defect not in JOURNAL else journal))

"""Damaged files: no corruption is accepted silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.corruptions import accepted_silently
from tests.soak.figures import report


@pytest.mark.slow
@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
def test_some_corruptions(is_compressed: bool, tmp_path: Path) -> None:
    """Flipped bits, swapped words and sectors, cuts and splices: a reader returns only intact lines, and reports the
    rest.
    """
    count, accepted = accepted_silently(tmp_path, 1, 100, is_compressed=is_compressed)
    assert accepted == []
    assert count > 150


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("seed", range(100, 113))
def test_a_hundred_thousand_corruptions(seed: int, is_compressed: bool, tmp_path: Path) -> None:
    """Not one of 100,000 corruptions is accepted silently."""
    count, accepted = accepted_silently(tmp_path, seed, 2_000, is_compressed=is_compressed)
    report("corruptions", len(accepted), count)
    assert accepted == []

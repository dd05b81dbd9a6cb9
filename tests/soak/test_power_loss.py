"""Twenty thousand power losses lose no acknowledged record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recording.test_durability import lose_power


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 140))
def test_twenty_thousand_disk_images(seed: int, tmp_path: Path) -> None:
    """Forty recordings with five hundred disk images each keep all acknowledged records.

    One image in fifty is ingested.
    """
    lose_power(tmp_path, seed, images=500, opened=10)

"""A thousand kills: what was acknowledged is there, once, and every store opens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.recording.test_kills import killed
from tests.soak.under_way import kill_streams, kill_works


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_thousand_kills(seed: int, tmp_path: Path) -> None:
    """Twenty homes, fifty kills each: 3 to 16 recorders, an ingester and a reader."""
    found = killed(tmp_path / "home", seed, kills=50, most=16)
    assert found["kills"] >= 50


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_fifty_kills_of_streams_under_way(seed: int, tmp_path: Path) -> None:
    """Real clients die in the middle of streams, with an ingest between."""
    kill_streams(tmp_path / "home", random.Random(seed), kills=12)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills_of_ingests_and_prunes(seed: int, tmp_path: Path) -> None:
    """Whoever ingests or prunes dies anywhere."""
    kill_works(tmp_path, random.Random(seed), kills=50)

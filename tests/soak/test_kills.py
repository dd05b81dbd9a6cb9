"""Ten thousand kills lose no acknowledged record, and every store can be opened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.recording.test_kills import killed
from tests.soak.process_kills import kill_ingests_and_prunes, kill_streaming_clients


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 300))
def test_ten_thousand_kills(seed: int, tmp_path: Path) -> None:
    """No acknowledged record is lost in two hundred homes with fifty kills each.

    Each home has 3 to 16 recorders, an ingester and a reader.
    """
    found = killed(tmp_path / "home", seed, kills=50, most=16)
    assert found["kills"] >= 50


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_forty_eight_kills_of_streaming_clients(seed: int, tmp_path: Path) -> None:
    """No acknowledged response is lost if clients are killed in the middle of streams, with occasional ingests."""
    kill_streaming_clients(tmp_path / "home", random.Random(seed), kills=12)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills_of_ingests_and_prunes(seed: int, tmp_path: Path) -> None:
    """Nothing is damaged if processes that ingest or prune are killed at random points."""
    kill_ingests_and_prunes(tmp_path, random.Random(seed), kills=50)

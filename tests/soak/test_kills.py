"""A thousand kills: what was acknowledged is there, once, and every store opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recording.test_kills import killed


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_thousand_kills(seed: int, tmp_path: Path) -> None:
    """Twenty homes, fifty kills each: 3 to 16 recorders, an ingester and a reader."""
    found = killed(tmp_path / "home", seed, kills=50, most=16)
    assert found["kills"] >= 50

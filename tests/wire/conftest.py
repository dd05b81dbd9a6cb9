"""Skips all tests of this directory if there is no recorded traffic."""

from __future__ import annotations

import pytest

from tests.wire import corpus


@pytest.fixture(scope="session", autouse=True)
def recorded_traffic() -> None:
    """Skip the tests if there is no recorded traffic."""
    if not (corpus.folder() / "manifest.json").is_file():
        pytest.skip(corpus.HINT.format(corpus.folder()))

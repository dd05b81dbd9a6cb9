"""What all tests over recorded traffic share."""

from __future__ import annotations

import pytest

from tests.wire import corpus


@pytest.fixture(scope="session", autouse=True)
def wire() -> None:
    """The recorded traffic is there; where it is not, these tests are skipped."""
    if not (corpus.folder() / "manifest.json").is_file():
        pytest.skip(corpus.HINT.format(corpus.folder()))

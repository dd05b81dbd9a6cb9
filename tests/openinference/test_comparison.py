"""Our profile `openinference` has what OpenInference's own instrumentation has."""

from __future__ import annotations

import json

from tests.openinference.comparison import INSTRUMENTED, PAGE, compared, page


def test_nothing_of_the_instrumentation_is_missing() -> None:
    """For the same conversations, each field of the instrumentation is in our spans with the same value, or
    docs/openinference.md explains why not; the page is up to date.
    """
    peer = json.loads(INSTRUMENTED.read_text())
    comparison = compared(peer)
    assert comparison.unexplained == {}
    assert sum(each.equal for each in comparison.fields.values()) > 200
    assert PAGE.read_text() == page(peer, comparison)

"""The form that selects two sessions: titles and times, and the previous run of a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.dashboards.live_app import serving
from tests.store.recordings import SECOND, T0, a_home

PROMPTS = ("Count the orders.", "Count the orders.", "Write to Ann.", "<b>Pack</b>")
NAMES = ("worker", "worker", "worker", "packer")


@pytest.mark.slow
def test_sessions_of_one_name_can_be_told_apart(tmp_path: Path) -> None:
    """The form shows the title and the start of each session, those of the same name first. It links the previous run
    of the given session, or states why there is none.
    """
    home = a_home(tmp_path)
    with recording(home) as emit:
        ids = []
        for number, (name, prompt) in enumerate(zip(NAMES, PROMPTS, strict=True)):
            run = SyntheticSession(emit, name, T0 + number * 100 * SECOND, seed=number + 1)
            with run.interaction(prompt):
                run.turn(text("Done."))
            ids.append(run.end())
    first, second, third, packer = ids
    with serving(home) as client:
        form = client.get("/compare")
        pages = {each: client.get(f"/compare?b={each}") for each in ids}
        one = client.get(f"/compare?a={second}")
        unknown = client.get("/compare?b=nothing-like-it")
    assert "worker, 2026-09-21 14:16:40" in form.html
    assert "completed, Write to Ann." in form.html
    assert "&lt;b&gt;Pack" in pages[packer].html
    assert "<b>Pack" not in pages[packer].html
    linked = pages[second].links("/compare?a=")
    assert linked == [f"/compare?a={each}&b={second}" for each in (first, third, first, packer)]
    assert "Compare with the previous run of this name worker" in pages[second].words
    assert "Compare with the previous session of this name worker" in pages[third].words
    assert "There is no earlier session named worker: it is the first of 3." in pages[first].words
    assert "Compare with the next run of this name worker" in pages[first].words
    assert f"/compare?a={first}&b={second}" in pages[first].links("/compare?a=")
    assert "Compare with the next" not in pages[second].words + pages[packer].words
    assert "There is no earlier session named packer: it is the only one." in pages[packer].words
    assert "There is no earlier session" not in one.words
    assert f"/compare?a={first}&b={second}" in one.links("/compare?a=")
    assert unknown.status == 404

"""Printed reports have dark text on white, whatever the theme on screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.store.backend import open_store
from dashboards.report.html_report import session_report
from tests.browser.tabs import Tab
from tests.store.recordings import a_home, attempt, end, record, session_id, start

pytestmark = pytest.mark.xdist_group("browser-printing")
DARKEST = 90
"""The maximum brightness of text, from 0 to 255. Our choice."""


@pytest.mark.parametrize("light", [True, False], ids=["light", "full"])
def test_a_dark_report_is_printed_light(tabs, tmp_path: Path, light: bool) -> None:
    """With a dark theme, the printed report has a white background, dark text, and static figures in light colors."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2), end(1)])
    path = tmp_path / "report.html"
    with open_store(home) as store:
        path.write_text(session_report(store, session_id(1), made_ns=0, light=light), "utf-8")
    tab: Tab = tabs(None, offline=True, color_scheme="dark")
    tab.page.goto(path.as_uri())
    tab.settle()
    assert all(max(found) < DARKEST for found in _colors(tab, "body", "background-color"))
    tab.page.emulate_media(media="print", color_scheme="dark")
    for place in ("body", ".panel", ".tile"):
        assert set(_colors(tab, place, "background-color")) == {(255, 255, 255)}
    for place in ("h1", "h2", "td", ".drawing text.f1d2329"):
        assert all(max(found) < DARKEST for found in _colors(tab, place, "color"))
    assert set(_colors(tab, ".drawing .f1f5fa8", "fill")) == {(0x1F, 0x5F, 0xA8)}
    assert set(_colors(tab, ".drawing .f1d2329", "fill")) <= {(0, 0, 0)}


def _colors(tab: Tab, place: str, kind: str) -> list[tuple[int, ...]]:
    """Return the colors of the selected elements, without transparent colors."""
    found = tab.page.evaluate(_COLORS, [place, kind])
    return [tuple(int(part) for part in color) for color in found]


_COLORS = """
([place, kind]) => [...document.querySelectorAll(place)]
  .map((each) => getComputedStyle(each)[kind].match(/[\\d.]+/g))
  .filter((parts) => parts && parts[3] !== "0").map((parts) => parts.slice(0, 3))
"""

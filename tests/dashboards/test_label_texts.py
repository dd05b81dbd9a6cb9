"""Pages show names and reasons in full, even if they are sentences."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from agentobs.recording.journal.home import existing_home
from tests.cli.test_texts import recorded
from tests.dashboards.live_app import serving

NAME = "Refund <b>agent</b> & friends"
REASON = 'the "customer" was not refunded'

pytestmark = pytest.mark.xdist_group("dashboards_texts")


@pytest.mark.slow
def test_pages_show_the_original_texts(tmp_path: Path) -> None:
    """The list, the page of a session and the fleet page show the original text, without interpreting markup in it."""
    recorded(tmp_path / "home", {"name": NAME, "reason": REASON})
    home = existing_home(tmp_path / "home")
    with serving(home) as client:
        pages = client.get("/"), client.get(f"/sessions/{quote(NAME)}")
        assert pages[1].status == 303
        page = client.get(pages[1].headers["location"])
        for got in (pages[0], page, client.get("/fleet")):
            assert got.status == 200
            assert NAME in got.words
            assert "<b>agent" not in got.html
        assert REASON in page.words
        found = client.get(f"/?q={quote(NAME)}")
        assert NAME in found.words


@pytest.mark.slow
def test_a_parameter_of_the_sql_page_is_compared_as_a_digest(tmp_path: Path) -> None:
    """A text finds the session that it names, as with `agentobs sql --param`; the result contains the digest."""
    recorded(tmp_path / "home", {"name": NAME, "reason": REASON})
    with serving(existing_home(tmp_path / "home")) as client:
        sql = "SELECT 'found ' || count(*) AS n FROM sessions WHERE name = $who"
        assert "found 1" in client.press("/sql", part=False, sql=sql, value_who=NAME).words
        assert "found 0" in client.press("/sql", part=False, sql=sql, value_who="other").words

"""Search, filters, sorting and paging of a list of twenty thousand sessions, as a user does it."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from agentobs.store.duckdb.connection import connect
from tests.browser.store_builders import SESSIONS
from tests.browser.tabs import Tab

pytestmark = pytest.mark.xdist_group("browser-large")
ROWS = "#found tbody tr"


@pytest.fixture
def listed(store, tabs) -> Tab:
    """A tab with the first page of the list."""
    tab: Tab = tabs(store("large"))
    tab.settle()
    return tab


@pytest.fixture(scope="module")
def query(store):
    """A function that queries the store for expected values."""
    connection = connect(store("large").home, ingest=False)

    def ask(sql: str) -> list[tuple]:
        return connection.execute(sql).fetchall()

    yield ask
    connection.close()


def test_the_list_shows_fifty_and_the_total(listed: Tab, query) -> None:
    """The fifty newest sessions are listed below the total number of sessions."""
    assert listed.page.locator(ROWS).count() == 50
    listed.wait_for_text(f"1 – 50 of {SESSIONS:,}")
    newest = query("SELECT session_id FROM sessions ORDER BY started_ns DESC LIMIT 50")
    assert _ids(listed) == [row[0] for row in newest]


def test_typing_a_part_of_an_id_finds_the_session(listed: Tab, query) -> None:
    """Typing a part of an ID finds the session without a further key or click; the URL contains the search."""
    [(session_id,)] = query(
        "SELECT session_id FROM sessions ORDER BY session_id LIMIT 1 OFFSET 4711"
    )
    listed.page.get_by_role("searchbox").fill(session_id[:28])
    listed.page.wait_for_function("() => document.querySelectorAll('#found tbody tr').length === 1")
    assert _ids(listed) == [session_id]
    assert parse_qs(urlsplit(listed.page.url).query)["q"] == [session_id[:28]]


def test_filters_are_combined_and_in_the_url(listed: Tab, query) -> None:
    """Filters by status, model, cost and day can be combined, and the URL contains them."""
    page = listed.page
    page.locator("#filters [name=status]").select_option("failed")
    page.locator("#filters [name=model]").select_option("claude-opus-5-5")
    page.locator("#filters [name=cost_from]").fill("0.1")
    page.locator("#filters [name=day_from]").fill("2026-10-01")
    page.wait_for_url(re.compile("day_from=2026-10-01"))
    [(expected,)] = query("""
        SELECT count(*) FROM sessions WHERE status = 'failed' AND cost_usd >= 0.1
            AND started_ns >= epoch_ns(TIMESTAMP '2026-10-01')
            AND session_id IN (SELECT session_id FROM attempts WHERE model = 'claude-opus-5-5')
    """)
    assert 50 < expected < SESSIONS
    listed.wait_for_text(f"1 – 50 of {expected:,}")
    assert set(page.locator(f"{ROWS} .status").all_inner_texts()) == {"✕ failed"}
    found = _ids(listed)
    page.goto(page.url)
    assert _ids(listed) == found
    page.locator("#filters [name=status]").select_option("")
    page.locator("#filters [name=model]").select_option("")
    page.locator("#filters [name=cost_from]").fill("")
    page.locator("#filters [name=day_from]").fill("")
    listed.wait_for_text(f"1 – 50 of {SESSIONS:,}")


def test_a_failure_signature_narrows_the_list(listed: Tab) -> None:
    """The list contains only the sessions that have the selected signature in their column."""
    page = listed.page
    page.wait_for_function(
        "() => [...document.querySelectorAll('[name=signature] option')].some((o) => /\\([1-9]/.test(o.text))"
    )
    result = page.locator("#filters [name=signature] option").all_inner_texts()
    chosen = next(each for each in result if re.search(r"\([1-9]", each))
    page.locator("#filters [name=signature]").select_option(label=chosen)
    page.wait_for_url(re.compile("signature="))
    listed.wait_for_text(f"of {chosen.partition('(')[2].rstrip(')')}")
    rows = page.locator(ROWS).all_inner_texts()
    assert rows
    assert all(chosen.partition(" (")[0] in row for row in rows)


def test_every_column_sorts_both_ways(listed: Tab, query) -> None:
    """The header of each column is a link that sorts the list; its direction is announced to screen readers."""
    page = listed.page
    count = page.locator("#found thead th a").count()
    assert count >= 8
    for number in range(count):
        for _ in range(2):
            listed.follow(page.locator("#found thead th a").nth(number))
            sorted_by = page.locator("#found thead th[aria-sort]")
            assert sorted_by.count() == 1
    page.goto(listed.served.origin + "/?sort=-cost")  # type: ignore[union-attr]
    dearest = query(
        "SELECT session_id FROM sessions ORDER BY cost_usd DESC NULLS LAST, session_id DESC LIMIT 50"
    )
    assert _ids(listed) == [row[0] for row in dearest]


def test_paging_reaches_the_last_page_and_back(listed: Tab) -> None:
    """The next and last links and the back button work, and no page lists more than fifty sessions."""
    page = listed.page
    first = _ids(listed)
    listed.follow(page.get_by_role("link", name="Next").first)
    second = _ids(listed)
    assert not set(first) & set(second)
    listed.follow(page.get_by_role("link", name="Last").first)
    listed.wait_for_text(f"of {SESSIONS:,}")
    assert page.locator(ROWS).count() == 50
    listed.back()
    assert _ids(listed) == second
    listed.back()
    assert _ids(listed) == first


def test_the_back_button_restores_the_list(listed: Tab) -> None:
    """The back button returns from a session to the same page of the same search."""
    page = listed.page
    page.goto(listed.served.origin + "/?q=coder&sort=cost&page=3")  # type: ignore[union-attr]
    before = _ids(listed)
    listed.follow(page.locator(f"{ROWS} a").first)
    assert "/sessions/" in page.url
    listed.back()
    assert _ids(listed) == before
    assert page.get_by_role("searchbox").input_value() == "coder"


def test_invalid_and_empty_searches_show_a_message(listed: Tab) -> None:
    """A search without results, and an invalid day, show a message instead of an empty page or an error."""
    assert listed.served is not None
    listed.page.goto(listed.served.origin + "/?q=nobody-is-called-this")
    assert "No matching sessions" in listed.page.locator("main").inner_text()
    listed.page.goto(listed.served.origin + "/?day_from=yesterday&cost_to=much")
    assert (
        "“yesterday”: expected a date, such as 2026-11-22"
        in listed.page.locator("main").inner_text()
    )
    assert "“much”: expected an amount in dollars" in listed.page.locator("main").inner_text()
    # The field itself rejects the value, and Chromium logs an error.
    listed.forgiven.append("does not conform to the required format")


def _ids(tab: Tab) -> list[str]:
    """Return the IDs of the listed sessions, in order."""
    links = tab.page.locator(f"{ROWS} td:nth-child(2) a[href^='/sessions/']")
    hrefs: list[str] = links.evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    return [href.removeprefix("/sessions/") for href in hrefs]

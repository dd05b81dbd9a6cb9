"""The list over a hundred thousand sessions: found, narrowed, sorted and turned over as a person does it."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from agentobs.store.duckdb.connection import connect
from tests.browser.making import SESSIONS
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
def asked(store):
    """Asks the store itself, for what a page should say."""
    connection = connect(store("large").home, ingest=False)

    def ask(sql: str) -> list[tuple]:
        return connection.execute(sql).fetchall()

    yield ask
    connection.close()


def test_the_list_says_how_many_there_are_and_shows_fifty(listed: Tab, asked) -> None:
    """The newest come first, fifty of them, and the number of all stands above."""
    assert listed.page.locator(ROWS).count() == 50
    listed.says(f"1 – 50 of {SESSIONS:,}")
    newest = asked("SELECT session_id FROM sessions ORDER BY started_ns DESC LIMIT 50")
    assert _ids(listed) == [row[0] for row in newest]


def test_typing_a_part_of_an_id_finds_that_session(listed: Tab, asked) -> None:
    """Without a key or a click more than the search itself; the address can be sent to somebody."""
    [(session_id,)] = asked(
        "SELECT session_id FROM sessions ORDER BY session_id LIMIT 1 OFFSET 4711"
    )
    listed.page.get_by_role("searchbox").fill(session_id[:28])
    listed.page.wait_for_function("() => document.querySelectorAll('#found tbody tr').length === 1")
    assert _ids(listed) == [session_id]
    assert parse_qs(urlsplit(listed.page.url).query)["q"] == [session_id[:28]]


def test_filters_work_together_and_are_in_the_address(listed: Tab, asked) -> None:
    """Status, model, cost and day narrow the list; a copy of the address shows the same."""
    page = listed.page
    page.locator("[name=status]").select_option("failed")
    page.locator("[name=model]").select_option("claude-opus-5-5")
    page.locator("[name=cost_from]").fill("0.1")
    page.locator("[name=day_from]").fill("2026-10-01")
    page.wait_for_url(re.compile("day_from=2026-10-01"))
    [(expected,)] = asked("""
        SELECT count(*) FROM sessions WHERE status = 'failed' AND cost_usd >= 0.1
            AND started_ns >= epoch_ns(TIMESTAMP '2026-10-01')
            AND session_id IN (SELECT session_id FROM attempts WHERE model = 'claude-opus-5-5')
    """)
    assert 50 < expected < SESSIONS
    listed.says(f"1 – 50 of {expected:,}")
    assert set(page.locator(f"{ROWS} .status").all_inner_texts()) == {"✕ failed"}
    found = _ids(listed)
    page.goto(page.url)
    assert _ids(listed) == found
    page.locator("[name=status]").select_option("")
    page.locator("[name=model]").select_option("")
    page.locator("[name=cost_from]").fill("")
    page.locator("[name=day_from]").fill("")
    listed.says(f"1 – 50 of {SESSIONS:,}")


def test_a_failure_signature_narrows_the_list(listed: Tab) -> None:
    """Sessions that show it, as the column says."""
    page = listed.page
    page.wait_for_function(
        "() => [...document.querySelectorAll('[name=signature] option')].some((o) => /\\([1-9]/.test(o.text))"
    )
    told = page.locator("[name=signature] option").all_inner_texts()
    chosen = next(each for each in told if re.search(r"\([1-9]", each))
    page.locator("[name=signature]").select_option(label=chosen)
    page.wait_for_url(re.compile("signature="))
    listed.says(f"of {chosen.partition('(')[2].rstrip(')')}")
    rows = page.locator(ROWS).all_inner_texts()
    assert rows
    assert all(chosen.partition(" (")[0] in row for row in rows)


def test_every_column_sorts_both_ways(listed: Tab, asked) -> None:
    """The head of a column is a link that sorts; it tells its direction to those who do not see the sign."""
    page = listed.page
    count = page.locator("#found thead th a").count()
    assert count >= 8
    for number in range(count):
        for _ in range(2):
            listed.follow(page.locator("#found thead th a").nth(number))
            sorted_by = page.locator("#found thead th[aria-sort]")
            assert sorted_by.count() == 1
    page.goto(listed.served.origin + "/?sort=-cost")  # type: ignore[union-attr]
    dearest = asked(
        "SELECT session_id FROM sessions ORDER BY cost_usd DESC NULLS LAST, session_id DESC LIMIT 50"
    )
    assert _ids(listed) == [row[0] for row in dearest]


def test_turning_over_reaches_the_last_page_and_back(listed: Tab) -> None:
    """Next, last, and the browser's back button; no page has more than fifty."""
    page = listed.page
    first = _ids(listed)
    listed.follow(page.get_by_role("link", name="Next").first)
    second = _ids(listed)
    assert not set(first) & set(second)
    listed.follow(page.get_by_role("link", name="Last").first)
    listed.says(f"of {SESSIONS:,}")
    assert page.locator(ROWS).count() == 50
    listed.back()
    assert _ids(listed) == second
    listed.back()
    assert _ids(listed) == first


def test_coming_back_from_a_session_finds_the_list_as_it_was(listed: Tab) -> None:
    """The back button leads to the same page of the same search."""
    page = listed.page
    page.goto(listed.served.origin + "/?q=coder&sort=cost&page=3")  # type: ignore[union-attr]
    before = _ids(listed)
    listed.follow(page.locator(f"{ROWS} a").first)
    assert "/sessions/" in page.url
    listed.back()
    assert _ids(listed) == before
    assert page.get_by_role("searchbox").input_value() == "coder"


def test_what_does_not_fit_is_said(listed: Tab) -> None:
    """A search without a hit, and a day that is none: words, no empty page and no fault."""
    assert listed.served is not None
    listed.page.goto(listed.served.origin + "/?q=nobody-is-called-this")
    assert "No matching sessions" in listed.page.locator("main").inner_text()
    listed.page.goto(listed.served.origin + "/?day_from=yesterday&cost_to=much")
    assert "“yesterday” is not a day" in listed.page.locator("main").inner_text()
    assert "“much” is not an amount" in listed.page.locator("main").inner_text()
    # The field itself refuses to hold it, and chromium says so.
    listed.forgiven.append("does not conform to the required format")


def _ids(tab: Tab) -> list[str]:
    """The sessions that are listed, in order."""
    links = tab.page.locator(f"{ROWS} td:nth-child(2) a[href^='/sessions/']")
    hrefs: list[str] = links.evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    return [href.removeprefix("/sessions/") for href in hrefs]

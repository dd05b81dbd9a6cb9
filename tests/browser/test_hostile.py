"""Texts that try to run scripts, to load other sites or to mislead are shown as text everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.hostile import AWAY, END, LINE, RUN, STRANGE_ID, TEXTS
from tests.browser.page_walk import axe_violations
from tests.browser.tabs import Served, Tab

pytestmark = pytest.mark.xdist_group("browser-hostile")
ELEMENTS = 4_000
"""The maximum number of elements of a page that shows content. Our choice."""
MARKS = 6
"""The maximum number of marks of a figure over which the mouse hovers. Our choice."""
SHOW = "Show transcript"
INJECTED_ELEMENTS = ", ".join(
    (
        "script:not([src]):not([type='application/json'])",
        "iframe, base, object, embed, meta[http-equiv]",
        "[onload], [onerror], [onfocus], [onmouseover], a[href^='javascript:'], a[ping]",
        f"[src^='{AWAY}'], [href^='{AWAY}'], [action^='{AWAY}']",
    )
)
"""Elements that no page of the dashboard contains, and that would exist if a hostile text became markup."""


@pytest.fixture
def served(store) -> Served:
    found: Served = store("hostile")
    return found


def test_names_are_shown_as_text(served: Served, tabs) -> None:
    """In the list, each name is shown as text, with invisible characters as escapes; none becomes markup."""
    tab: Tab = tabs(served)
    tab.settle()
    _assert_unharmed(tab)
    shown = _squeezed(tab.page.locator("#found").inner_text())
    assert [name for name, words in TEXTS.items() if _visible_part(words) not in shown] == []
    result = tab.page.evaluate(_ALL_TEXTS)
    assert [sign for sign in "\u202e\x1b\u2066\u200b\x07" if sign in result] == []


def test_tool_names_in_figures_are_text(served: Served, tabs) -> None:
    """Tool names in figures create no link, bold text or line break, although Plotly supports such markup."""
    tab: Tab = tabs(served)
    for path in ("/fleet", *_sessions(tab)[:3]):
        tab.go(path)
        tab.draw()
        _assert_unharmed(tab)
        assert tab.page.locator(".js-plotly-plot a").count() == 0
        assert tab.page.locator(".js-plotly-plot tspan[style*=bold]").count() == 0


def test_hover_texts_are_text(served: Served, tabs) -> None:
    """Hover texts with recorded names are shown as text; none becomes markup."""
    tab: Tab = tabs(served)
    result = ""
    for path in ("/fleet", _sessions(tab)[2]):
        tab.go(path)
        tab.draw()
        for name in tab.page.locator("[data-figure]").evaluate_all(_NAMES):
            result += _hover_texts(tab, name)
            _assert_unharmed(tab)
    assert "<" in result
    assert any(_visible_part(words)[:20] in _squeezed(result) for words in TEXTS.values())
    assert not [sign for sign in "\u202e\x1b\u2066\u200b\x07" if sign in result]


def test_content_is_shown_as_text(served: Served, tabs) -> None:
    """Prompts, responses, thinking, tool inputs and tool results run no script and load nothing, also as rendered
    Markdown and as trees. The raw text shows them completely.
    """
    tab: Tab = tabs(served)
    _open_transcript(tab, served)
    _assert_unharmed(tab)
    tab.page.get_by_role("button", name="Expand all").click()
    _assert_unharmed(tab)
    assert tab.page.locator("#transcript .markdown").count() > 0
    assert tab.page.locator("#transcript ul.json").count() > 0
    assert tab.page.locator("#transcript img").count() == 0
    tab.page.get_by_role("button", name="Show raw text").click()
    tab.page.get_by_role("button", name="Show rendered").wait_for()
    _assert_unharmed(tab)
    shown = _squeezed(tab.page.locator("#transcript").inner_text())
    assert [name for name, words in TEXTS.items() if _visible_part(words) not in shown] == []
    assert tab.page.locator("#transcript a[href^='http']").count() == 0
    tab.page.locator("#transcript details > summary").first.click()
    _assert_unharmed(tab)


def test_content_is_accessible(served: Served, tabs) -> None:
    """Axe finds no violation in a transcript: each scrollable text can be focused, even after it was expanded."""
    tab: Tab = tabs(served)
    _open_transcript(tab, served)
    assert axe_violations(tab, "#transcript") == ()
    tab.page.get_by_role("button", name="Expand all").click()
    assert tab.page.locator("#transcript details pre[tabindex='0']").count() > 0
    assert axe_violations(tab, "#transcript") == ()


def test_a_line_of_ten_million_characters_is_cut(served: Served, tabs) -> None:
    """The page shows the beginning of a long text and its length; the full text can be downloaded."""
    tab: Tab = tabs(served)
    _open_transcript(tab, served)
    page = tab.page
    assert len(page.content()) < 2_000_000
    assert page.evaluate("document.querySelectorAll('*:not(.js-plotly-plot *)').length") < ELEMENTS
    assert (
        f"{LINE + len(f'<script>{RUN}</script>') + len(END):,} characters"
        in page.locator("main").inner_text()
    )
    assert END not in page.content()
    with page.expect_download() as saved:
        page.locator(
            "form", has_text=re.compile("of 10,0[0-9]{2},[0-9]{3} characters")
        ).get_by_role("button", name="Download").first.click()
    assert saved.value.suggested_filename.endswith(".txt")
    kept = Path(saved.value.path()).read_text("utf-8")
    assert kept.rstrip().endswith(END)
    assert len(kept) > LINE


def test_requests_and_changes_are_shown_as_text(served: Served, tabs) -> None:
    """The exact request and response of each attempt, and its changes since the previous attempt, are shown as text."""
    tab: Tab = tabs(served)
    tab.go(_session_at_length(tab, served))
    tab.go(_session_at_length(tab, served) + "?tab=steps")
    attempts = tab.page.locator("#steps a[href^='/attempts/']").evaluate_all(
        "all => [...new Set(all.map((a) => a.getAttribute('href')))]"
    )
    assert len(attempts) >= 4
    tab.go(attempts[0])
    tab.page.get_by_role("button", name="Show request and response").click()
    # From here on, the browser shows content without further clicks.
    for path in attempts:
        tab.go(path)
        tab.page.wait_for_selector("#exchange pre", state="attached")
        _assert_unharmed(tab)
        assert len(tab.page.content()) < 2_000_000
    tab.go(attempts[-1] + "/diff")
    tab.page.wait_for_selector("[data-content] pre", state="attached")
    tab.settle()
    _assert_unharmed(tab)
    assert len(tab.page.content()) < 2_000_000


def test_inputs_are_shown_as_text(served: Served, tabs) -> None:
    """The search, the filters and the SQL page show their inputs as text, even if they come from a malicious link."""
    tab: Tab = tabs(served)
    for words in TEXTS.values():
        tab.page.goto(
            f"{served.origin}/?{_query(q=words, model=words, day_from=words, sort=words)}"
        )
        _assert_unharmed(tab)
        assert tab.page.get_by_role("searchbox").input_value() == words.strip()[:200].replace(
            "\r", ""
        )
    page = tab.go("/sql")
    statement = f"SELECT '{TEXTS['closing'].replace(chr(39), chr(34))}' AS \"{TEXTS['image']}\""
    page.get_by_label("Statement").fill(statement)
    tab.follow(page.get_by_role("button", name="Run", exact=True))
    _assert_unharmed(tab)
    assert page.get_by_label("Statement").input_value() == statement
    assert "<img src=x" in page.locator("#result th").inner_text()
    for path in ("/sessions/", "/attempts/", "/compare?a="):
        for words in (TEXTS["closing"], TEXTS["attribute"], "../../etc/passwd", "%00"):
            tab.page.goto(served.origin + path + _query(x=words)[2:])
            _assert_unharmed(tab)
    tab.forgiven += ["does not conform to the required format"]
    tab.forgiven += ["404 ", "status of 404", "400 ", "status of 400"]


def test_an_unusual_session_id_has_its_page(served: Served, tabs) -> None:
    """If a session ID contains quotes, slashes and markup, each link to this session opens its page."""
    tab: Tab = tabs(served)
    tab.page.goto(f"{served.origin}/?{_query(q=STRANGE_ID)}")
    link = tab.page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']")
    assert link.count() == 1
    tab.follow(link)
    _assert_unharmed(tab)
    assert _squeezed(STRANGE_ID) in _squeezed(tab.page.locator("main").inner_text())
    tab.follow(tab.page.get_by_role("link", name="Ledger").first)
    _assert_unharmed(tab)
    assert tab.page.locator("h1").inner_text() == "Ledger"


@pytest.mark.parametrize(
    "how",
    [(), ("--interactive",), ("--with-content",), ("--interactive", "--with-content")],
)
def test_a_report_shows_them_as_text(how: tuple[str, ...], served: Served, tabs, tmp_path) -> None:
    """A report that is opened from disk runs no script, loads nothing, and shows all hostile texts as text."""
    path = _report(served, tmp_path, *how)
    tab: Tab = tabs(None, offline=True)
    tab.page.goto(path.as_uri())
    tab.settle()
    tab.draw()
    assert tab.page.evaluate("window.hacked") is None
    shown = _squeezed(tab.page.locator("main").text_content() or "")
    missing = [name for name, words in TEXTS.items() if _visible_part(words) not in shown]
    assert missing == ([] if "--with-content" in how else list(TEXTS))
    assert (
        tab.page.locator(
            f"iframe, base, object, [onerror], [src^='{AWAY}'], [href^='{AWAY}']"
        ).count()
        == 0
    )
    assert (
        len(tab.page.locator("script:not([type='application/json'])").all()) == 0
        or "--interactive" in how
    )
    assert {url for url in tab.requested if not url.startswith("data:")} == {path.as_uri()}


def _report(served: Served, folder: Path, *how: str) -> Path:
    import subprocess
    import sys

    path = folder / "report.html"
    command = [sys.executable, "-m", "agentobs", "--home", str(served.home.path)]
    done = subprocess.run(
        [*command, "report", "said-at-length", "-o", str(path), *how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


def _hover_texts(tab: Tab, name: str) -> str:
    """Return the hover texts of the marks of a figure.

    If the hover text covers all marks at one position, the figure shows it as a legend.
    """
    tab.page.locator(f"[data-figure={name}]").scroll_into_view_if_needed()
    result = ""
    for mark in tab.page.locator(f"[data-figure={name}] .bars .point path").all()[:MARKS]:
        box = mark.bounding_box()
        if not box or box["width"] < 1 or box["height"] < 1:
            continue
        tab.page.mouse.move(1, 1)
        tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        text = tab.page.locator(f"[data-figure={name}] .hoverlayer :is(.hovertext, .legend)").first
        text.wait_for(state="attached")
        result += text.text_content() or ""
        assert text.locator("a, [style*=bold]").count() == 0
    return result


def _assert_unharmed(tab: Tab) -> None:
    """Assert that no script ran, and that no text became markup."""
    assert tab.page.evaluate("[window.hacked, {}.polluted]") == [None, None]
    assert tab.page.locator(INJECTED_ELEMENTS).count() == 0
    assert tab.page.locator("main").is_visible()


def _sessions(tab: Tab) -> list[str]:
    tab.go("/")
    found: list[str] = tab.page.locator(
        "#found tbody td:nth-child(2) a[href^='/sessions/']"
    ).evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    return found


def _session_at_length(tab: Tab, served: Served) -> str:
    tab.go("/?q=said-at-length")
    found = tab.page.locator("#found tbody a[href^='/sessions/']").first.get_attribute("href")
    assert found is not None
    return found


def _open_transcript(tab: Tab, served: Served) -> None:
    tab.go(_session_at_length(tab, served) + "?tab=transcript")
    tab.page.get_by_role("button", name=SHOW).click()
    tab.page.wait_for_selector("#transcript article")
    tab.settle()


def _query(**values: str) -> str:
    from urllib.parse import urlencode

    return urlencode({k: v.encode("utf-8", "replace") for k, v in values.items()})


def _visible_part(words: str) -> str:
    """Return the longest part of a text without invisible characters, which the page must show unchanged."""
    parts = re.split(r"[^ -~]+", words)
    return _squeezed(max(parts, key=len))


_NAMES = """
all => all.map((each) => each.dataset.figure)
"""
_ALL_TEXTS = """
() => document.body.innerText + [...document.querySelectorAll("*")].flatMap((each) =>
    ["aria-label", "title", "alt", "placeholder"].map((name) => each.getAttribute(name))).join(" ")
"""
"""The visible text, and the text for screen readers."""


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)

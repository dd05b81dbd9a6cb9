"""The trace of a session: the tree, the selected step and the waterfall belong together, by mouse or by keyboard."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.tabs import Held, Tab

pytestmark = pytest.mark.xdist_group("browser-long")
SELECTED = "#tree [aria-selected=true]"


@pytest.fixture
def tab(store, tabs) -> Tab:
    """A tab with the page of a session of a thousand turns."""
    opened: Tab = tabs(store("long"))
    opened.settle()
    opened.follow(opened.page.locator("#found tbody a[href^='/sessions/']").first)
    return opened


def _step(tab: Tab) -> str:
    """Return the step in the URL; empty if there is none."""
    return parse_qs(urlsplit(tab.page.url).query).get("step", [""])[0]


def _wait_for_step(tab: Tab, previous: str) -> str:
    """Wait until another step is selected; return it."""
    tab.page.wait_for_function(
        "(before) => (new URL(location.href).searchParams.get('step') ?? '') !== before "
        "&& document.querySelector('.step-head')?.dataset.step === new URL(location.href).searchParams.get('step')",
        arg=previous,
    )
    return _step(tab)


def test_failures_are_reached_by_key_and_the_url_keeps_the_step(tab: Tab) -> None:
    """The n and p keys go through the failures. The step is in the URL: a reload, another tab and Back show it."""
    page = tab.page
    page.keyboard.press("n")
    first = _wait_for_step(tab, "")
    assert "failed" in page.locator("#step").inner_text()
    page.keyboard.press("n")
    second = _wait_for_step(tab, first)
    title = page.locator("#step-title").inner_text()
    place = page.locator("#step .line").first.inner_text()
    page.keyboard.press("p")
    assert _wait_for_step(tab, second) == first
    tab.back()
    page.wait_for_function(
        "(id) => document.querySelector('.step-head')?.dataset.step === id", arg=second
    )
    page.reload()
    tab.settle()
    assert page.locator("#step-title").inner_text() == title
    assert page.locator("#step .line").first.inner_text() == place
    assert page.locator(SELECTED).get_attribute("data-step") == second
    assert page.locator(SELECTED).is_visible()


def test_the_tree_is_used_by_keyboard(tab: Tab) -> None:
    """The arrow keys move, expand and collapse; what a collapsed step contains is loaded when it is expanded."""
    page = tab.page
    item = page.locator("#tree [role=treeitem][aria-expanded=false][aria-level='1']").first
    name, count = item.get_attribute("data-step"), page.locator("#tree a").count()
    item.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(n) => document.querySelectorAll('#tree a').length > n", arg=count)
    page.keyboard.press("ArrowRight")
    inner = page.evaluate("document.activeElement.dataset.step")
    assert inner != name
    page.keyboard.press("Enter")
    assert _wait_for_step(tab, "") == inner
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.step") == name
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tree a:visible").count() == count
    stops = "document.querySelectorAll('#tree a[tabindex=\"0\"]').length"
    assert page.evaluate(stops) == 1


def test_the_filter_finds_steps_in_the_whole_session(tab: Tab) -> None:
    """The filter searches all steps, including collapsed ones, and is in the URL. Its first match is selected."""
    page = tab.page
    before = _step(tab)
    page.keyboard.press("/")
    page.keyboard.type("turn=512 find_order")
    tab.wait_for_text("1 step matches", "#tree-summary")
    assert page.locator("#tree a").count() == 1
    match = _wait_for_step(tab, before)
    assert page.locator(SELECTED).get_attribute("data-step") == match
    assert "find_order" in page.locator("#step-title").inner_text()
    assert page.evaluate("document.activeElement.name") == "find"
    page.reload()
    tab.settle()
    assert page.locator("#tree a").count() == 1
    assert page.locator(SELECTED).get_attribute("data-step") == match
    page.locator("#tree-filter [name=find]").fill("")
    page.locator("#tree-filter [name=failed]").check()
    tab.wait_for_text("request attempt", "#tree-summary")
    summary = page.locator("#tree-summary").inner_text()
    denied = page.locator("#tree a:has-text('⊘')").count()
    failed = page.locator("#tree a.failed:has-text('call ')").count() - denied
    were_denied = f", and {denied} tool calls? w(as|ere) denied" if denied else ""
    assert re.fullmatch(
        rf"{failed} tool calls? and \d+ request attempts? failed{were_denied}\.", summary
    )


def test_failed_only_goes_to_the_first_failed_step(tab: Tab) -> None:
    """ "failed only" selects the first failed step, whatever was selected, and the tree starts with it."""
    page = tab.page
    for _ in range(3):
        before = _step(tab)
        page.keyboard.press("n")
        _wait_for_step(tab, before)
    before = _step(tab)
    page.locator("#tree-filter [name=failed]").check()
    first = _wait_for_step(tab, before)
    assert page.locator("#tree a").first.get_attribute("data-step") == first
    assert page.locator("#tree").evaluate("tree => tree.scrollTop") == 0


def _shown(tab: Tab) -> str | None:
    """Return the step in the details."""
    return tab.page.locator(".step-head").get_attribute("data-step")


def _details(tab: Tab) -> list[str]:
    """Return the URLs of the details that were requested."""
    return [url for url in tab.requested if "/step?" in url]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_only_the_last_filter_is_shown(tab: Tab, order: tuple[int, int]) -> None:
    """In whatever order the responses to two filters arrive, the tree shows the matches of the later one."""
    page = tab.page
    field, summary = page.locator("#tree-filter [name=find]"), page.locator("#tree-summary")
    held = Held(page, "**/tree?find=*")
    field.fill("search_stock")
    held.wait()
    field.fill("turn=512 find_order")
    held.wait(2)
    for at in order:
        held.release(at)
        assert summary.inner_text() in ("", "1 step matches.")
    match = _wait_for_step(tab, "")
    assert summary.inner_text() == "1 step matches."
    assert page.locator("#tree a").evaluate_all("all => all.map((a) => a.dataset.step)") == [match]
    assert len(_details(tab)) == 1


def test_a_filter_selects_its_match_although_an_earlier_filter_selected_one(tab: Tab) -> None:
    """If the matches of a filter arrive while the user types on, the details show a match of what was typed last."""
    page, before = tab.page, _shown(tab)
    page.evaluate(_HOLD_THE_FIRST_TREE)
    held = Held(page, "**/step?*")
    page.locator("#tree-filter [name=find]").fill("turn=511 ")
    page.wait_for_function("() => window.heldTree !== undefined")
    # The user types before the timer of the next filter, and the first step is selected before it ends.
    page.evaluate(_TYPE_AND_RELEASE, "turn=512 find_order")
    tab.wait_for_text("1 step matches.", "#tree-summary")
    held.wait(2)
    held.release(1)
    match = page.locator("#tree a").get_attribute("data-step")
    assert _shown(tab) == match
    assert match != before
    assert _step(tab) == match


_HOLD_THE_FIRST_TREE = """
() => {
  const send = window.fetch;
  window.fetch = async (...request) => {
    const response = await send(...request);
    if (String(request[0]).includes("/tree?") && window.heldTree === undefined) {
      await new Promise((release) => { window.heldTree = release; });
    }
    return response;
  };
}
"""
_TYPE_AND_RELEASE = """
(words) => {
  const field = document.querySelector("#tree-filter [name=find]");
  field.value = words;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  window.heldTree();
}
"""


def test_a_filter_drops_the_selection_of_an_earlier_one(tab: Tab) -> None:
    """If the details of a first match arrive after another filter, a selected step that matches it stays selected."""
    page = tab.page
    field, before = page.locator("#tree-filter [name=find]"), _shown(tab)
    held = Held(page, "**/step?*")
    field.fill("turn=512 find_order")
    held.wait()
    field.fill("find_order")
    page.locator(f"{SELECTED}[data-step='{before}']").wait_for()
    held.release()
    assert _shown(tab) == before
    assert _step(tab) == ""


@pytest.mark.parametrize("is_tree_first", [True, False])
def test_a_row_that_is_selected_while_failed_steps_load_wins(tab: Tab, is_tree_first: bool) -> None:
    """After a click on a line with several failed steps, a row that is selected before they arrive stays selected."""
    page = tab.page
    trees, steps = Held(page, "**/tree?failed=1*"), Held(page, "**/step?*")
    page.locator("#failure a[data-filter]").last.click()
    trees.wait()
    row = page.locator("#tree a.request").nth(1)
    chosen = row.get_attribute("data-step")
    row.click()
    steps.wait()
    for held in (trees, steps) if is_tree_first else (steps, trees):
        held.release()
    tab.wait_for_text("failed", "#tree-summary")
    assert _wait_for_step(tab, "") == chosen
    assert page.locator("#tree a:not(.failed)").count() == 0
    assert len(_details(tab)) == 1


def test_a_row_that_is_clicked_before_the_filter_is_sent_wins(tab: Tab) -> None:
    """The filter waits until the user stops typing. A row that is clicked meanwhile stays selected."""
    page = tab.page
    chosen = page.locator("#tree a.request").nth(1).get_attribute("data-step")
    page.evaluate(
        """id => {
          const field = document.querySelector("#tree-filter [name=find]");
          field.value = "find_order";
          field.dispatchEvent(new Event("input", { bubbles: true }));
          document.querySelector(`#tree a[data-step="${id}"]`).click();
        }""",
        chosen,
    )
    tab.wait_for_text("steps match", "#tree-summary")
    tab.settle()
    assert page.locator(f"#tree a[data-step='{chosen}']").count() == 0
    assert _step(tab) == _shown(tab) == chosen
    assert len(_details(tab)) == 1
    # What the user types later selects its first match again.
    page.locator("#tree-filter [name=find]").fill("turn=512 find_order")
    assert _wait_for_step(tab, chosen) == page.locator("#tree a").get_attribute("data-step")


def test_the_way_to_a_step_does_not_replace_a_filter(tab: Tab) -> None:
    """If the tree with a collapsed step arrives after the matches of a filter, the matches stay."""
    page = tab.page
    held = Held(page, "**/tree?step=*")
    page.keyboard.press("n")
    held.wait()
    page.locator("#tree-filter [name=find]").fill("find_order")
    tab.wait_for_text("steps match", "#tree-summary")
    rows = "all => all.map((a) => a.dataset.step)"
    matches = page.locator("#tree a").evaluate_all(rows)
    held.release()
    assert page.locator("#tree a").evaluate_all(rows) == matches


def test_back_from_the_failed_steps_shows_all_steps(tab: Tab) -> None:
    """A line with several failed steps loads the details of one step, and adds one entry to the history."""
    page = tab.page
    page.locator("#tree a.request").nth(1).click()
    before = _wait_for_step(tab, "")
    length, link = page.evaluate("history.length"), page.locator("#failure a[data-filter]").last
    link.click()
    assert _wait_for_step(tab, before) == link.get_attribute("data-step")
    assert page.locator(SELECTED).get_attribute("data-step") == _step(tab)
    assert "failed=1" in page.url
    assert page.evaluate("history.length") == length + 1
    assert len(_details(tab)) == 2
    page.go_back()
    page.locator(f"{SELECTED}.request[data-step='{before}']").wait_for()
    tab.settle()
    assert parse_qs(urlsplit(page.url).query) == {"step": [before]}
    assert not page.locator("#tree-filter [name=failed]").is_checked()
    assert page.locator("#tree-summary").inner_text() == ""
    assert _shown(tab) == before


def test_the_waterfall_and_the_tree_select_the_same_step(tab: Tab) -> None:
    """A click on a bar selects its step; a step that is selected in the tree is marked in the waterfall."""
    page = tab.page
    page.get_by_role("link", name=re.compile("First turns")).click()
    page.wait_for_url(re.compile("from=1"))
    tab.settle()
    figure = page.locator("[data-figure=waterfall]")
    figure.scroll_into_view_if_needed()
    tab.settle()
    shapes = "document.querySelector('[data-figure=waterfall]').layout.shapes"
    marked = f"() => {shapes}.filter((each) => each.name === 'selected').length"
    # The first failure is selected when the page opens.
    page.wait_for_function(f"({marked})() === 1")
    first = page.evaluate(f"{shapes}.at(-1).x0")
    # The first trace contains the requests, after the segments of the critical path.
    bar = figure.locator(".trace.bars").first.locator(".point path").last
    box = bar.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    step = _wait_for_step(tab, "")
    page.wait_for_function(f"(x) => ({marked})() === 1 && {shapes}.at(-1).x0 !== x", arg=first)
    assert page.locator(SELECTED).get_attribute("data-step") == step
    before = page.evaluate(f"{shapes}.at(-1).x0")
    page.locator("#tree a.request").first.click()
    _wait_for_step(tab, step)
    page.wait_for_function(f"(x) => {shapes}.at(-1).x0 !== x", arg=before)


def test_content_stays_visible_until_the_user_hides_it(tab: Tab) -> None:
    """After one click, content of this home is shown without further clicks, until the user hides it."""
    page = tab.page
    page.locator("#tree a.request").first.click()
    step = _wait_for_step(tab, "")
    assert page.locator("#step .message").count() == 0
    page.get_by_role("button", name="Show messages").click()
    page.locator("#step .message").first.wait_for()
    page.locator("#tree a.request").nth(1).click()
    _wait_for_step(tab, step)
    page.locator("#step .message").first.wait_for()
    page.get_by_role("button", name="Hide content").click()
    page.wait_for_load_state("load")
    tab.settle()
    assert page.locator("#step .message").count() == 0

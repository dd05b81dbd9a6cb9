"""A denied call is counted as denied and a failed call as failed, with the same numbers everywhere."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import ToolAnswer
from agentobs.store.backend import open_store
from dashboards.app import session_page
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import Client, query_rows, serving
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    tool,
)

pytestmark = pytest.mark.slow


class Denials(NamedTuple):
    """A session with three denied and one failed call, and one with a denied call."""

    home: Home
    client: Client
    many: str
    one: str


def _session(run: SyntheticSession, denied: int, failed: int) -> str:
    with run.interaction("Refund the orders."):
        for number in range(denied + failed):
            call = {
                "type": "tool_use",
                "id": run.call_id(),
                "name": "refund",
                "input": {"order": number},
            }
            run.turn(call)
            is_denied = number < denied
            answer = "No." if is_denied else "TimeoutError: the shop did not answer"
            run.results(
                run.run_call(call, answer, is_error=not is_denied, waited=1, denied=is_denied)
            )
        run.turn(text("Some were not possible."))
    return run.end()


@pytest.fixture(scope="module")
def denials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Denials]:
    home = a_home(tmp_path_factory.mktemp("denials"))
    with recording(home) as emit:
        many = _session(SyntheticSession(emit, "refunds", T0), 3, 1)
        one = _session(SyntheticSession(emit, "refunds", T0 + 900 * SECOND, seed=2), 1, 0)
    with serving(home) as client:
        yield Denials(home, client, many, one)


def test_the_terminal_separates_denied_from_failed_calls(
    denials: Denials, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary, the totals, the turns, the list, the tools and the comparison have the same numbers."""
    shell = Shell(denials.home.path, capsys)
    shown = shell("show", denials.many).out
    assert shown.startswith("completed, but 1 tool call failed, and 3 tool calls were denied:\n")
    assert "  3 × call refund: denied (turns 1 to 3)\n" in shown
    assert ", 4 tool calls (1 failed, 3 denied)\n" in shown
    assert " with 1 failed and 3 denied tool calls (turns 1, 2, 3 and 1 more)" in shown
    turn = shell("show", denials.many, "--turn", "2").out
    assert "1 request, 1 tool call (1 denied)\n" in turn
    only = shell("show", denials.one).out
    assert only.startswith("completed, but 1 tool call was denied:\n")
    assert "1 tool call (1 denied)\n" in only
    causes = re.findall(r"completed +([13] call.*?)  ", shell("sessions").out)
    assert causes == [
        "1 call of refund was denied",
        "1 call of refund failed; 3 calls of refund were denied",
    ]
    [tool] = csv.DictReader(io.StringIO(shell("tools", denials.many, "--csv").out))
    assert (tool["calls"], tool["errors"], tool["denied"]) == ("4", "1", "3")
    compared = shell("diff", denials.many, denials.one).out
    assert re.search(r"^failed tool calls +1 +0 +-1 *$", compared, re.MULTILINE)
    assert re.search(r"^denied tool calls +3 +1 +-2 *$", compared, re.MULTILINE)


def test_the_pages_separate_denied_from_failed_calls(denials: Denials) -> None:
    """The banner, the tile, the tree, the list, the export and the comparison have the numbers of the terminal."""
    page = denials.client.get(f"/sessions/{denials.many}")
    assert (
        "Completed, but refund was denied in 3 of 4 calls and failed in 1 of 4 calls" in page.words
    )
    assert "refund was denied 3 times" in page.words
    assert "Tool calls 4 1 failed, 3 denied" in page.words
    assert "failed or denied only" in page.words
    assert page.html.count('<span class="hidden">denied</span>') == 3
    assert page.html.count('<span class="hidden">failed</span>') == 1
    assert re.findall(r'class="fails">([^<]*)<', page.html)[0] == "1 failed, 3 denied"
    overview = denials.client.get(f"/sessions/{denials.many}?tab=overview").words
    assert "1 of 4 calls failed (25.0%). 3 were denied." in overview
    only = denials.client.get(f"/sessions/{denials.one}").words
    assert "Completed, but refund was denied once" in only
    assert "Go to the denied tool call" in only
    listed = denials.client.get("/").words
    assert "1 call of refund was denied" in listed
    assert "1 call of refund failed; 3 calls of refund were denied" in listed
    exported = csv.DictReader(io.StringIO(denials.client.get("/sessions.csv").body.decode()))
    assert {(row["session_id"], row["failed_calls"], row["denied_calls"]) for row in exported} == {
        (denials.many, "1", "3"),
        (denials.one, "0", "1"),
    }
    compared = denials.client.get(f"/compare?a={denials.many}&b={denials.one}").words
    assert "Failed tool calls 1 0 1 fewer in B (100%)" in compared
    assert "Denied tool calls 3 1 2 fewer in B (67%)" in compared


@pytest.mark.parametrize("path", ["tree?failed=1", "?failed=1", "?tab=trace&failed=1"])
def test_the_filter_counts_as_the_terminal(denials: Denials, path: str) -> None:
    """The filter for failed or denied steps has the sentence of `agentobs show`."""
    page = denials.client.get(f"/sessions/{denials.many}{'/' if 'tree' in path else ''}{path}")
    assert "1 tool call failed, and 3 tool calls were denied." in page.words
    only = denials.client.get(f"/sessions/{denials.one}/tree?failed=1").words
    assert "1 tool call was denied." in only


def test_the_filter_for_equal_denials_counts_them_as_denied(denials: Denials) -> None:
    """The link of a line about denied calls leads to these calls, and they are not counted as failed."""
    page = denials.client.get(f"/sessions/{denials.many}")
    [link] = {each for each in page.links("/sessions/") if "like=" in each}
    found = denials.client.get(link)
    assert "3 tool calls were denied." in found.words
    assert "1 tool call failed, and" not in found.words


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """A session with a denied and a blocked call, whose results are not errors, and a call that failed."""
    home = a_home(tmp_path_factory.mktemp("unmarked"))
    ids = [f"toolu_{number}" for number in (1, 2, 3)]
    calls = [{"type": "tool_use", "id": each, "name": "weather", "input": {}} for each in ids]
    answers = [
        ToolAnswer("no", outcome="denied"),
        ToolAnswer("no", outcome="blocked"),
        ToolAnswer("no", True, outcome="failed"),
    ]
    results = [
        replace(tool(1, id, "weather", at=T0 + 2 * SECOND), answer=answer)
        for id, answer in zip(ids, answers, strict=True)
    ]
    record(home, [start(1, "unmarked"), attempt(1, 1, content=calls), *results, end(1)])
    with serving(home) as client:
        yield home, client


def _rows_of(home: Home, query: str, session: str) -> list[dict[str, Any]]:
    with open_store(home) as store:
        return list(store.rows(query, session_id=session).dicts())


def test_a_denied_call_counts_without_an_error_mark(
    unmarked: tuple[Home, Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """A denied or blocked call is denied everywhere, whether or not its result is marked as an error."""
    home, client = unmarked
    id = session_id(1)
    page = client.get(f"/sessions/{id}").words
    assert "Tool calls 3 1 failed, 2 denied" in page
    counted = "1 tool call failed, and 2 tool calls were denied"
    assert counted in client.get(f"/sessions/{id}/tree?failed=1").words
    assert (
        "1 of 3 calls failed (33.3%). 2 were denied."
        in client.get(f"/sessions/{id}?tab=overview").words
    )
    assert "1 call of weather failed; 2 calls of weather were denied" in client.get("/").words
    shell = Shell(home.path, capsys)
    assert shell("show", id).out.startswith(f"completed, but {counted}:\n")
    [tools] = csv.DictReader(io.StringIO(shell("tools", id, "--csv").out))
    assert (tools["calls"], tools["errors"], tools["denied"]) == ("3", "1", "2")
    for query in ("slowest_tools", "tool_latency"):
        [found] = _rows_of(home, query, id)
        assert (found["errors"], found["denied"]) == (1, 2)
    [turn] = _rows_of(home, "session_turns", id)
    assert (turn["tool_errors"], turn["denied_calls"]) == (1, 2)


def test_equal_texts_are_compared_on_the_trace_only(
    denials: Denials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content is read within the limit for such threads, each time that the trace is shown, and for no other tab."""
    answers = [True, False]
    slots = Slots()

    def compare(*_: Any) -> bool:
        assert slots.is_taken
        return answers.pop(0)

    monkeypatch.setattr(session_page, "have_equal_errors", compare)
    monkeypatch.setattr(session_page, "CONTENT_SLOTS", slots)
    path = f"/sessions/{denials.many}"
    assert "3 times the same result:" in denials.client.get(path).words
    for tab in ("overview", "cost"):
        assert denials.client.get(f"{path}?tab={tab}").status == 200
    assert len(answers) == 1
    assert "All 3 were denied. Result of the first:" in denials.client.get(path).words


class Slots:
    """A limit for threads that states whether a thread is in it."""

    is_taken = False

    def __enter__(self) -> None:
        self.is_taken = True

    def __exit__(self, *_: object) -> None:
        self.is_taken = False


def test_a_denied_group_offers_its_result(denials: Denials) -> None:
    """The button below the line about denied calls names their result; that of failed calls names the error."""
    banner = denials.client.get(f"/sessions/{denials.many}").html.partition('id="failure"')[2]
    banner = banner.partition("</section>")[0]
    assert "Show the result" in banner
    assert "Show the error text" not in banner


def test_the_store_counts_denied_calls_as_errors(denials: Denials) -> None:
    """In the view `errors`, a denied call is an error with its outcome, because the model gets it as an error."""
    rows = query_rows(
        denials.home, "SELECT outcome, count(*) AS n FROM errors GROUP BY ALL ORDER BY ALL"
    )
    assert rows == [("denied", 4), ("failed", 1)]


def test_equal_texts_of_errors_are_stated_without_the_text(denials: Denials) -> None:
    """If the recorded results are equal, the page states this before the text is shown."""
    page = denials.client.get(f"/sessions/{denials.many}")
    assert "3 times the same result:" in page.words
    assert "No." not in page.words

"""The head of a comparison: it agrees with the other pages and with the command, and offers other sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import Failure, ModelExchange
from agentobs.records.outcome_difference import outcome_difference
from agentobs.store.analysis.first_changes import MISSING_FAILED, MOST_FIRSTS, first_changes
from agentobs.store.analysis.unfinished_turns import of_outcomes, unfinished_words
from dashboards.panels.pair_summary import totals
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.cli.pseudo_terminal import on_terminal
from tests.dashboards.live_app import Client, query_rows, serving
from tests.dashboards.test_pair_page import NO_CALLS, step_of
from tests.store.recordings import SECOND, T0, a_home

TITLE = "Refund order 4711 & then write to the customer."
CUT_CAUSE = "the response was cut: RemoteProtocolError from claude-opus-5-5"


class Pair(NamedTuple):
    """A session with a sub-agent that failed, and a session of the same name whose only response was cut."""

    home: Home
    client: Client
    delegating: str
    cut: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A home with two sessions of one name that failed for different causes, with different models and tasks."""
    home = a_home(tmp_path_factory.mktemp("agreement"))
    with recording(home) as emit:

        def emit_cut(each: Any) -> None:
            if isinstance(each, ModelExchange):
                failure = Failure("RemoteProtocolError", "closed")
                chunks = each.answer.chunks[:2]
                answer = replace(each.answer, chunks=chunks, ending="cut", failure=failure)
                each = replace(each, answer=answer)
            emit(each)

        run = SyntheticSession(emit, "desk", T0, model="claude-haiku-5-5")
        with run.interaction(TITLE):
            call: dict[str, Any] = dict(type="tool_use", id=run.call_id(), name="agent", input={})
            run.turn(call)
            with run.sub_agent(call):
                run.turn(text("In stock."))
                run.turn(text("Still in stock."))
            run.results(dict(type="tool_result", tool_use_id=call["id"], content="In stock."))
            refund: dict[str, Any] = dict(
                type="tool_use", id=run.call_id(), name="refund", input={}
            )
            run.turn(refund)
            run.results(run.run_call(refund, "ValueError: no such order", is_error=True))
            run.turn(text("Sorry."))
        delegating = run.end("failed", "ValueError")
        run = SyntheticSession(emit_cut, "desk", T0 + 600 * SECOND, seed=2, model="claude-opus-5-5")
        with run.interaction("Pack the parcels."):
            run.turn(text("All parcels are packed."))
        cut = run.end("failed", "RemoteProtocolError")
    with serving(home) as client:
        yield Pair(home, client, delegating, cut)


def diff(pair: Pair, *options: str) -> str:
    """Return the output of `agentobs diff`."""
    ids = (pair.delegating, pair.cut)
    return CliRunner().invoke(cli, ["--home", str(pair.home.path), "diff", *ids, *options]).stdout


@pytest.mark.slow
def test_turns_are_those_of_the_other_pages(pair: Pair) -> None:
    """The comparison counts the turns of all agents, and names turns without a complete response, as the session page,
    `show` and the view `sessions` do.
    """
    page = pair.client.get(f"/compare?a={pair.delegating}&b={pair.cut}").words
    assert "Turns (all agents) 5 0 complete and 1 cut off 5 fewer in B (100%)" in page
    assert re.search(
        r"^turns \(all agents\) +5 +0 complete and 1 cut off +-5 *$", diff(pair), re.MULTILINE
    )
    found = json.loads(diff(pair, "--json"))
    assert [found[side]["turns"] for side in "ab"] == [
        row[0] for row in query_rows(pair.home, "SELECT turns FROM sessions ORDER BY started_ns")
    ]
    assert found["b"]["unfinished_turns"] == {"number": 1, "word": "cut"}
    assert (
        "Turns 5 main agent 3, sub-agents 2"
        in pair.client.get(f"/sessions/{pair.delegating}").words
    )
    assert "Turns 0 complete and 1 cut off" in pair.client.get(f"/sessions/{pair.cut}").words
    arguments = ["--home", str(pair.home.path), "show", pair.cut]
    assert ", 0 complete turns and 1 cut off, " in CliRunner().invoke(cli, arguments).stdout


def test_cut_turns_are_named_if_the_complete_turns_are_equal() -> None:
    """Turns without a complete response are not hidden by an equal number of complete turns."""
    cut = {"turns": 3, "unfinished_turns": {"number": 2, "word": "without a response"}}
    [turns] = totals({"turns": 3}, cut)
    assert (turns.a, turns.b) == ("3", "3 complete and 2 without a response")
    assert turns.difference == "no difference of complete turns"
    empty = {"turns": 0, "unfinished_turns": {"number": 1, "word": "cut"}}
    assert [each.difference for each in totals(empty, empty)] == ["no difference"]
    assert (
        unfinished_words(of_outcomes(["cut 200", "http_error 529"]))
        == " complete and 2 without a response"
    )
    assert unfinished_words(of_outcomes([])) == ""


@pytest.mark.slow
def test_failures_with_different_causes_are_a_difference(pair: Pair) -> None:
    """If both sessions failed, the page and the command say whether the causes differ, and show them."""
    page = pair.client.get(f"/compare?a={pair.delegating}&b={pair.cut}").words
    words = "both failed, for different causes: ValueError in A, RemoteProtocolError in B"
    assert f"Outcome failed failed {words}" in page
    shown = diff(pair)
    assert f"\n{words}\n" in shown
    for cause in ("ValueError in refund", CUT_CAUSE):
        assert cause in page
        assert f"\n   cause: {cause}\n" in shown


def test_a_cause_is_compared_without_the_number_of_a_line() -> None:
    """The same error in an edited file is the same cause; an unknown cause is not a difference."""
    failed = {"outcome": "failed", "cause": "ValueError in refund at desk.py:39"}
    moved = {**failed, "cause": "ValueError in refund at desk.py:41"}
    other = {**failed, "cause": "KeyError in refund at desk.py:39"}
    assert outcome_difference(failed, moved) == "no difference"
    assert outcome_difference(failed, other) == "both failed, for different causes"
    assert outcome_difference(failed, {"outcome": "failed"}) == "no difference"
    assert outcome_difference(failed, {"outcome": "crashed"}) == "different"
    assert outcome_difference(failed, {}) == ""


@pytest.mark.slow
def test_the_model_precedes_the_first_differences(pair: Pair) -> None:
    """A different model explains most other differences, so it comes first; the command names the turns of both."""
    page = pair.client.get(f"/compare?a={pair.delegating}&b={pair.cut}").words
    assert page.index("Model: claude-haiku-5-5 → claude-opus-5-5") < page.index("First ")
    assert page.partition("Totals ")[0].count("First ") <= MOST_FIRSTS
    found = re.search(
        r"^model: claude-haiku-5-5 -> claude-opus-5-5 (.*)$", diff(pair), re.MULTILINE
    )
    assert found
    assert found[1] == "in 1 request (turn 3 in A, turn 1 in B)"


def test_a_later_failed_step_is_not_named_as_the_first() -> None:
    """A failed step that only one session has is not named if a step of both sessions fails earlier in only one."""
    common = step_of("changed", 2, "refund")
    common["b"] = {**common["b"], "outcome": "failed"}
    single = step_of("added", 15, "refund", outcome="failed")
    found = first_changes([common, single], (1, 2), {"main": "main"}, NO_CALLS)
    assert [(each.of, each.text) for each in found] == [
        ("change of outcome", "call refund in turn 2")
    ]
    found = first_changes([single, common], (1, 2), {"main": "main"}, NO_CALLS)
    assert [each.of for each in found] == ["change of outcome", MISSING_FAILED]
    extra = step_of("added", 1, "/v1/messages", outcome="http_error 529", retried="succeeded")
    prompt = step_of("changed", 16, "/v1/messages", outcome="ok")
    prompt["differs"] = ["response"]
    steps = [step_of("added", 1), single, common, prompt, extra]
    found = first_changes(steps, (1, 2, 3, 4, 5), {"main": "main"}, NO_CALLS)
    assert [each.of for each in found] == ["change of outcome", MISSING_FAILED, "difference"]


@pytest.mark.parametrize("outcome", ["failed", "denied"])
def test_a_step_of_only_one_session_is_named_once(outcome: str) -> None:
    """The line about a failed or denied step of one session says neither twice."""
    single = step_of("added", 1, "write", outcome=outcome)
    [found] = first_changes([single], (1,), {"main": "main"}, NO_CALLS)
    assert found.line == (
        f"first {outcome} step that only one session has: call write in turn 1: in B"
    )


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_terminal_keeps_the_difference(pair: Pair, columns: int) -> None:
    """The table of totals always has the difference, and at 80 columns also both values; long values are wrapped."""
    shown = on_terminal(pair.home.path, "diff", pair.delegating, pair.cut, columns=columns)
    start = next(at for at, line in enumerate(shown.lines) if line.endswith("B - A"))
    table = shown.lines[start : shown.lines.index("", start)]
    assert table[0].split() == (
        ["A", "B", "B", "-", "A"] if columns == 80 else ["A", "B", "-", "A"]
    )
    assert table[1].startswith("turns ")
    assert table[1].split()[-1] == "-5"
    assert any("unknown: " in line for line in table if line.startswith("output tokens"))
    assert max(map(len, table)) <= columns


@pytest.mark.slow
def test_another_session_can_be_chosen_for_either_side(pair: Pair) -> None:
    """The page links the choice of another session for A and for B. If no step is identical, it offers this first."""
    page = pair.client.get(f"/compare?a={pair.delegating}&b={pair.cut}")
    links = [f"/compare?a={pair.delegating}", f"/compare?b={pair.cut}"]
    assert [each for each in page.links("/compare") if each in links] == links
    order = [page.words.index(each) for each in (
        "The sessions have no identical step.", "Compare A with another session",
        "Compare B with another session", "Totals",
    )]  # fmt: skip
    assert order == sorted(order)
    same = pair.client.get(f"/compare?a={pair.cut}&b={pair.cut}")
    assert {f"/compare?a={pair.cut}", f"/compare?b={pair.cut}"} <= set(same.links("/compare"))
    kept = pair.client.get(links[1])
    assert f"/compare?a={pair.delegating}&b={pair.cut}" in kept.links("/compare?a=")


@pytest.mark.slow
def test_the_link_names_the_session_that_is_compared(pair: Pair, tmp_path: Path) -> None:
    """The link on a session page has the title of the other session; runs of one task have the same title, so it has
    the start of the other run.
    """
    later = pair.client.get(f"/sessions/{pair.cut}")
    assert "Compare with the previous session “Refund order 4711 & then write…”" in later.words
    assert "4711 &amp; then write…" in later.html
    earlier = pair.client.get(f"/sessions/{pair.delegating}").words
    assert "Compare with the next session “Pack the parcels.”" in earlier
    home = a_home(tmp_path)
    with recording(home) as emit:
        for number in (1, 2):
            run = SyntheticSession(emit, "worker", T0 + number * 100 * SECOND, seed=number)
            with run.interaction("Count."):
                run.turn(text("Done."))
            last = run.end()
    with serving(home) as client:
        words = client.get(f"/sessions/{last}").words
    assert "Compare with the previous run of 2026-09-21 14:15:00" in words

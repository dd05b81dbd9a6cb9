"""The comparison of two sessions in the application: their names, their aligned steps, and differences in words."""

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
from agentobs.cli.inspection.diff import comparison_of
from agentobs.recording.journal.home import Home
from agentobs.records.display import seconds
from agentobs.records.exchanges import child_lane
from agentobs.records.words import NO_IDENTICAL_STEP
from agentobs.store.analysis.failed_steps import failed_calls
from agentobs.store.analysis.first_changes import first_changes
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from dashboards.app.comparison.difference_list import difference_rows, difference_runs
from dashboards.app.comparison.pair_page import PAGE_SIZE
from dashboards.app.comparison.pair_texts import _changes
from dashboards.figures import two_sessions
from dashboards.figures.session_pair import lane_names
from dashboards.panels.pair_summary import ending, row, totals
from replay.divergence.session_diff import Part, compared
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import Lane, SyntheticSession, text
from tests.dashboards.live_app import Client, query_rows, serving
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    conversation,
    end,
    record,
    session_id,
    start,
    tool,
)

ONE, OTHER, LONG = (session_id(number) for number in (1, 2, 3))
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two runs of an agent and a long session; the second run has more calls and higher costs."""
    home = a_home(tmp_path_factory.mktemp("pairs"))
    calls = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]
    record(home, [start(1, "before"), attempt(1, 1), attempt(1, 2), end(1)])
    record(
        home,
        [
            start(2, "after", tag=EVIL),
            attempt(2, 1, content=calls, input_tokens=1_000),
            tool(2, "toolu_1", "weather", at=T0 + 2 * SECOND),
            attempt(2, 2),
            attempt(2, 3, model="model-of-nobody"),
            end(2, failed=True),
        ],
    )
    record(home, conversation(3, turns=PAGE_SIZE + 20, name="long"))
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


@pytest.mark.slow
def test_two_sessions_are_compared(client: Client) -> None:
    """The page shows changed steps, steps of only one session, the cost of each step, and totals with differences."""
    got = client.get(f"/compare?a={ONE}&b={OTHER}")
    assert got.status == 200
    assert {f"/sessions/{ONE}", f"/sessions/{OTHER}"} <= set(got.links("/sessions/"))
    words = got.words
    assert "Attempts 2 3 1 more in B (50%)" in words
    assert "only in B" in words
    assert "tool call weather" in words
    assert "Tool calls 0 1 1 more in B" in words
    assert "Uncached input tokens 20 1,020 1,000 more in B (51 times as much)" in words
    assert "at least $" in words
    assert "steps differ." in words


@pytest.mark.slow
def test_the_page_agrees_with_the_command(home: Home, client: Client) -> None:
    """The page shows the same steps as `agentobs diff --json`: the same pairs, with the same differences."""
    answer = CliRunner().invoke(cli, ["--home", str(home.path), "diff", ONE, OTHER, "--json"])
    assert answer.exit_code == 0
    result = json.loads(answer.stdout)
    with open_store(home) as store:
        comparison = comparison_of(store, ONE, OTHER)
        # The page replaces the digests of what the sessions were made with, because texts may be deleted.
        [shown] = LabelTexts(store).replace_in_dicts([comparison])
    assert comparison["steps"][-1]["differs"] == ["model", "messages"]
    assert shown == result
    changed = sum(step["change"] != "same" for step in result["steps"])
    assert (
        f"{changed} of {len(result['steps'])} steps differ."
        in client.get(f"/compare?a={ONE}&b={OTHER}").words
    )


@pytest.mark.slow
def test_a_session_is_identical_to_itself(client: Client) -> None:
    """If a session is compared with itself, the page states that all steps are identical."""
    words = client.get(f"/compare?a={ONE}&b={ONE}").words
    assert "All 2 steps are identical." in words
    assert "No difference of outcomes or content." in words
    assert "No changes." in client.get(f"/compare?a={ONE}&b={ONE}&changed=1").words


def test_sessions_are_found_by_name_or_id_suffix(client: Client) -> None:
    """Sessions can be given by a name or a suffix of an ID; the URL then contains both full IDs."""
    got = client.get(f"/compare?a=before&b={OTHER[:8]}")
    assert (got.status, got.headers["location"]) == (303, f"/compare?a={ONE}&b={OTHER}")


@pytest.mark.slow
def test_without_two_sessions_there_is_a_form(client: Client) -> None:
    """Without two sessions, a form suggests the latest sessions and keeps a session that was already given."""
    assert 'name="a"' in client.get("/compare").html
    one = client.get(f"/compare?a={ONE}")
    assert f'value="{ONE}"' in one.html
    assert f'<option value="{OTHER}">' in one.html
    wrong = client.get(f"/compare?a={ONE}&b=nothing-like-it")
    assert wrong.status == 404
    assert "no session with that ID or name" in wrong.words
    assert "<script>" not in client.get("/compare?a=%3Cscript%3E&b=x").html


@pytest.mark.slow
def test_only_changed_steps_on_demand_and_paging(client: Client) -> None:
    """A page of a long comparison has a bounded number of rows, and can be limited to changed steps."""
    got = client.get(f"/compare?a={ONE}&b={LONG}")
    assert got.html.partition('id="steps"')[2].count("<tr class=") == PAGE_SIZE
    assert f"a={ONE}&b={LONG}&page=2" in got.links("?")[0]
    last = client.get(f"/compare?a={ONE}&b={LONG}&page=2")
    assert last.html.partition('id="steps"')[2].count("<tr class=") == 20
    only = client.get(f"/compare?a={ONE}&b={LONG}&changed=1")
    assert '<tr class="same"' not in only.html


def test_differences_are_in_words() -> None:
    """A difference is described as more, less, none or unknown.

    Costs are exact decimals, and lower bounds are marked.
    """
    a = {
        "requests": 2,
        "cost_usd": "0.30",
        "unpriced": 0,
        "input_tokens": 10,
        "session_duration_ns": 10**9,
    }
    b = {
        "requests": 2,
        "cost_usd": "0.15",
        "unpriced": 1,
        "cost_status": "lower_bound",
        "input_tokens": 15,
        "session_duration_ns": 2 * 10**9,
    }
    found = {each.name: (each.a, each.b, each.difference) for each in totals(a, b)}
    assert found == {
        "Cost": ("$0.3000", "at least $0.1500", "unknown: $0.3000 in A, at least $0.1500 in B"),
        "Duration": ("1.00 s", "2.00 s", "1.00 s more in B (100%)"),
        "Attempts": ("2", "2", "no difference"),
        "Uncached input tokens": ("10", "15", "5 more in B (50%)"),
    }
    exact = {**a, "cost_status": "exact"}
    assert totals(exact, {**exact, "cost_usd": "0.15"})[0].difference == "$0.1500 less in B (50%)"
    low = {**exact, "cost_status": "lower_bound"}
    more = {**exact, "cost_usd": "0.45"}
    assert totals(exact, {**more, "cost_status": "lower_bound"})[0].difference == (
        "at least $0.1500 more in B (50%)"
    )
    assert totals(low, more)[0].difference == ("unknown: at least $0.3000 in A, $0.4500 in B")
    assert totals(low, {**more, "cost_status": "lower_bound"})[0].difference == (
        "unknown: at least $0.3000 in A, at least $0.4500 in B"
    )
    about = {**more, "cost_status": "estimated"}
    assert totals(exact, about)[0].difference == "about $0.1500 more in B (50%)"
    unknown = totals({**a, "cost_usd": None}, b)[0]
    assert (unknown.a, unknown.difference) == ("unknown", "unknown (a value is missing)")


@pytest.mark.parametrize(
    ("old", "new", "words", "drawn"),
    [
        ((540, 0), (121, 1), "unknown: 540 in A, at least 121 in B", ""),
        ((121, 1), (540, 0), "unknown: at least 121 in A, 540 in B", ""),
        ((121, 0), (540, 1), "at least 419 more in B", "at least 419 more"),
        ((121, 1), (540, 1), "unknown: at least 121 in A, at least 540 in B", ""),
    ],
)
def test_the_difference_of_partial_counts_is_a_bound(
    old: tuple[int, int], new: tuple[int, int], words: str, drawn: str
) -> None:
    """If a response was cut, its output tokens are a lower bound; so are sums, and differences are bounds."""
    a, b = ({"output_tokens": count, "lower_bound_calls": calls} for count, calls in (old, new))
    [found] = totals(a, b)
    assert found.difference == words
    assert (found.a.startswith("at least "), found.b.startswith("at least ")) == (
        bool(old[1]),
        bool(new[1]),
    )
    written = [note.text for note in two_sessions({"a": a, "b": b}).layout.annotations]
    assert f"{found.b}{f' ({drawn})' if drawn else ''}" in written
    part = {"kind": "request", "lane": "main", "output_tokens": 7, "counts_status": "lower_bound"}
    assert row({"change": "added", "b": part})["b"] == "at least 7 out"


def test_a_run_of_additional_steps_ends_at_a_common_step() -> None:
    """Only steps without a common step of their lane between them are one run, even if two lanes alternate."""
    side = {"main": {"lane": "main"}, "other": {"lane": "main/agent#1"}}
    changes = [
        *(("main", each) for each in ("added", "same", "added", "added", "changed", "removed")),
        *(("other", each) for each in ("same", "added", "added", "same")),
    ]
    steps = [
        {"change": change, "a" if change == "removed" else "b": side[lane]}
        for lane, change in changes
    ]
    assert difference_runs(steps, [1, 3, 4, 5, 6, 8, 9]) == [[1], [3, 4], [5], [6], [8, 9]]
    assert difference_runs(steps, [1, 8, 3, 9, 4, 5, 6]) == [[1, 8], [3, 9, 4], [5], [6]]


def step_of(change: str, turn: int, name: str = "look", **facts: Any) -> dict[str, Any]:
    """Return a step of a comparison; `facts` are facts of the existing sides."""
    kind = "request" if name == "/v1/messages" else "tool_call"
    side = {
        "kind": kind,
        "lane": "main",
        "turn": turn,
        "name": name,
        "outcome": "executed",
        **facts,
    }
    sides = {"added": "b", "removed": "a"}.get(change, "ab")
    return {"change": change, "differs": [], **dict.fromkeys(sides, side)}


NO_CALLS = [frozenset[str]()] * 2
"""The IDs of the tool calls of both sessions whose result is an error."""


def test_consecutive_additional_steps_are_one_row() -> None:
    """Steps that only one session has are one row, even if a common step of the same turn is between them, and if
    steps of the other session are. Rows with failed steps come first, then rows of several turns.
    """
    steps = [
        step_of("changed", 1),
        *(step_of("added", turn) for turn in range(2, 9)),
        step_of("changed", 8, "/v1/messages", outcome="ok"),
        step_of("removed", 2),
        *(step_of("added", turn) for turn in range(8, 17)),
        step_of("changed", 17),
        step_of("added", 17, "refund", outcome="failed"),
    ]
    rows = difference_rows(steps, range(1, len(steps) + 1), {"main": "main"}, NO_CALLS)
    assert [(each["turns"], each["steps"], each["words"], each["failed"]) for each in rows] == [
        ("turn 17", 1, "only in B", "refund failed"),
        ("turns 2 to 16", 16, "only in B", ""),
        ("turn 1", 1, "changed", ""),
        ("turn 8", 1, "changed", ""),
        ("turn 2", 1, "only in A", ""),
        ("turn 17", 1, "changed", ""),
    ]
    assert rows[1]["tools"] == "look"


def test_the_first_differences_are_named_once() -> None:
    """Neither a failed step of one session nor an attempt that was retried changes an outcome. The parts of
    the prompt are named even if the outcome of the request differs as well.
    """
    attempt = step_of("added", 1, "/v1/messages", outcome="http_error 529", retried="succeeded")
    call = step_of("added", 1, "grep", outcome="failed")
    prompt = step_of("changed", 1, "/v1/messages", outcome="ok")
    prompt["differs"] = ["outcome", "response", "system_prompt"]
    found = first_changes([attempt, call, prompt], (1, 2, 3), {"main": "main"}, NO_CALLS)
    assert [(each.of, each.text, each.words) for each in found] == [
        (
            "failed step that only one session has",
            "call grep in turn 1",
            "in B",
        ),
        ("change of content", "request in turn 1", "different system prompt, text of the response"),
        ("extra attempt", "request in turn 1", "only in B, http_error 529, retried and succeeded"),
    ]
    prompt["b"] = {**prompt["b"], "outcome": "cut 200"}
    found = first_changes([attempt, prompt], (1, 2), {"main": "main"}, NO_CALLS)
    assert [(each.of, each.number, each.words) for each in found[:2]] == [
        ("change of outcome", 2, "failed only in B"),
        ("change of content", 2, "different system prompt, text of the response"),
    ]
    late = [step_of("added", 1), {**prompt, "b": {**prompt["a"], "turn": 25}}]
    found = first_changes(late, (1, 2), {"main": "main"}, NO_CALLS)
    assert [(each.of, each.number, each.text) for each in found] == [
        ("difference", 1, "call look in turn 1"),
        ("change of content", 2, "request in turn 1 in A, turn 25 in B"),
    ]


@pytest.mark.slow
def test_a_retried_attempt_is_an_extra_attempt(tmp_path: Path) -> None:
    """An attempt that failed and was retried is paired with no other one, and the page names it as an extra attempt.
    Sessions without an identical step are announced first, by the page and by the command, and the totals precede the
    selected step.
    """
    home = a_home(tmp_path)
    record(home, [start(1, "before"), attempt(1, 1), end(1)])
    record(
        home,
        [
            start(2, "after"),
            attempt(2, 1, status=529),
            attempt(2, 1, at=T0 + 3 * SECOND, model="model-of-nobody"),
            end(2),
        ],
    )
    with open_store(home) as store:
        steps = comparison_of(store, ONE, OTHER)["steps"]
    assert [(each["change"], each["b"].get("retried")) for each in steps] == [
        ("added", "succeeded"),
        ("changed", None),
    ]
    command = CliRunner().invoke(cli, ["--home", str(home.path), "diff", ONE, OTHER])
    assert command.stdout.startswith(NO_IDENTICAL_STEP)
    assert "529 overloaded_error (retried, succeeded)" in command.stdout
    assert re.search(r"^turns \(all agents\) +1 +1 *$", command.stdout, re.MULTILINE)
    with serving(home) as client:
        words = client.get(f"/compare?a={ONE}&b={OTHER}").words
    offered = "Compare A with another session Compare B with another session"
    assert f"Session comparison ! {NO_IDENTICAL_STEP} {offered} A before" in words
    assert "First extra attempt: request in turn 1 : only in B, http_error 529" in words
    assert "First change of outcome" not in words
    assert "Outcome completed completed no difference" in words
    assert "Turns (all agents) 1 1 no difference" in words
    assert "model-of-nobody different Attempts 1 2 1 more in B" in words
    assert words.index("Totals") < words.index("Step in B")


def test_each_step_shows_the_certainty_of_its_cost() -> None:
    """An inexact cost of a step has the prefix `at least` or `about`, in the table and in the figure."""
    part = {"kind": "request", "lane": "main", "turn": 1, "name": "/v1/messages", "cost_usd": "0.5"}
    low, about = {**part, "cost_status": "lower_bound"}, {**part, "cost_status": "estimated"}
    step = {"change": "changed", "a": low, "b": about, "differs": []}
    result = row(step)
    assert (result["a"], result["b"]) == ("at least $0.5000", "about $0.5000")
    figure = two_sessions({"a": {}, "b": {}, "steps": [step]})
    written = [note.text for note in figure.layout.annotations]
    assert {"at least $0.5000", "about $0.5000"} <= set(written)
    hover = figure.data[-1].hovertext[0]
    assert ", at least $0.5000<br>B: " in hover
    assert hover.endswith(", about $0.5000")


class Runs(NamedTuple):
    """A home with two runs of an agent."""

    home: Home
    client: Client
    first: str
    second: str


CALLS = ("Bern", "Basel", "Thun", "Chur")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Two runs of an agent with content: the second makes an additional call, and writes another answer."""
    home = a_home(tmp_path_factory.mktemp("runs"))
    with recording(home) as emit:
        for cities, answer in (
            (CALLS, "It rains in Bern."),
            (("Genf", *CALLS), "It snows in Bern."),
        ):
            run = SyntheticSession(
                emit, "weather", T0 + len(cities) * 60 * SECOND, seed=len(answer)
            )
            with run.interaction("How is the weather?"):
                for number, city in enumerate(cities):
                    call = {
                        "type": "tool_use",
                        "id": run.call_id(),
                        "name": "find_order",
                        "input": {"order": city},
                    }
                    run.turn(call)
                    run.results(run.run_call(call, f"{city}: {number} degrees"))
                run.turn(text(answer))
            run.end()
    ids = [
        str(row[0])
        for row in query_rows(home, "SELECT session_id FROM sessions ORDER BY started_ns")
    ]
    with serving(home) as made:
        yield Runs(home, made, *ids)


@pytest.mark.slow
def test_the_head_names_models_and_failed_calls(tmp_path: Path) -> None:
    """The page and the command state which model replaced which one, and the number of failed calls of each session.
    The list of differences has the old and the new value of each fact.
    """
    home = a_home(tmp_path)
    ids = []
    with recording(home) as emit:
        for seed, model in ((1, "claude-haiku-5-5"), (2, "claude-opus-5-5")):
            run = SyntheticSession(emit, "refunds", T0 + seed * 60 * SECOND, seed=seed, model=model)
            with run.interaction("Refund order 4711."):
                for number in range(3):
                    call: dict[str, Any] = dict(type="tool_use", id=run.call_id(), name="refund")
                    call["input"] = {"order": number}
                    run.turn(call)
                    is_error = (number == 2) if seed == 1 else number != 2
                    answer = "refused" if is_error else "refunded"
                    run.results(run.run_call(call, answer, is_error=is_error))
                run.turn(text("Done."))
            ids.append(run.end())
    a, b = ids
    command = CliRunner().invoke(cli, ["--home", str(home.path), "diff", a, b])
    with serving(home) as client:
        words = client.get(f"/compare?a={a}&b={b}").words
    assert "Model: claude-haiku-5-5 → claude-opus-5-5 in 4 requests, first in turn 1" in words
    assert "First change of outcome: call refund in turn 1 : failed only in B" in words
    assert "~ turn 1 request model claude-haiku-5-5 → claude-opus-5-5 " in words
    listed = words.partition("Differences ")[2]
    assert listed.index("refund failed only in B") < listed.index("~ turn 1 request model")
    assert "outcome executed → failed, result" in words
    assert "Failed tool calls 1 2 1 more in B (100%)" in words
    assert (
        "model: claude-haiku-5-5 -> claude-opus-5-5 in 4 requests, first in turn 1"
        in command.stdout
    )
    assert re.search(r"^failed tool calls +1 +2 +\+1 *$", command.stdout, re.MULTILINE)
    with open_store(home) as store:
        failed = failed_calls(store, ids)
        comparison = comparison_of(store, a, b)
    assert {comparison[each]["session_id"]: comparison[each]["failed_calls"] for each in "ab"} == {
        session_id: each.count for session_id, each in failed.items()
    }
    firsts = re.findall(r"^first .*$", command.stdout, re.MULTILINE)
    assert firsts == [
        "first change of outcome: call refund in turn 1: failed only in B",
        "first difference: request in turn 1: different model",
        "first change of content: call refund in turn 1: different result",
    ]
    assert len(firsts) == words.partition("Totals ")[0].count("First ")
    assert command.stdout.index(firsts[-1]) < command.stdout.index("tool call refund")


@pytest.mark.slow
def test_an_additional_step_shifts_no_other_step(runs: Runs) -> None:
    """Steps are aligned by what they do: the additional call is found, and the same calls stay aligned."""
    home, client, first, second = runs
    with open_store(home) as store:
        comparison = comparison_of(store, first, second)
    found = [
        (step["change"], (step.get("a") or step.get("b"))["name"], step.get("differs"))
        for step in comparison["steps"]
        if step["change"] != "same"
    ]
    assert found == [
        ("added", "/v1/messages", []),
        ("added", "find_order", []),
        *[("changed", "find_order", ["result"])] * len(CALLS),
        ("changed", "/v1/messages", ["response"]),
    ]
    assert "digest" not in json.dumps(comparison)
    words = client.get(f"/compare?a={first}&b={second}").words
    assert "7 of 11 steps differ." in words
    assert "First difference: request in turn 1 only in B" in words


@pytest.mark.slow
def test_texts_are_compared_word_by_word_on_demand(runs: Runs) -> None:
    """The page contains no text. After a click, the changed words of the selected step are marked."""
    _, client, first, second = runs
    page = client.get(f"/compare?a={first}&b={second}&step=11")
    assert "rains" not in page.html
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.html))
    shown = client.press("/compare/texts", **fields)
    assert "It <del>rains</del> in Bern." in shown.html
    assert "It <ins>snows</ins> in Bern." in shown.html
    refused = client.post(
        "/compare/texts", {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    )
    assert (refused.status, "rains" in refused.html) == (403, False)
    assert "rains" not in client.get("/compare/texts").html


def test_texts_of_another_session_are_not_shown(runs: Runs) -> None:
    """A step that does not belong to the session in the form is rejected."""
    _, client, first, second = runs
    page = client.get(f"/compare?a={first}&b={second}&step=11")
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.html))
    fields["a"] = second
    assert client.press("/compare/texts", **fields).status == 404


@pytest.mark.slow
def test_a_session_is_compared_with_the_previous_run_of_its_name(
    runs: Runs,
) -> None:
    """The page of a session links to the comparison with the previous session of the same name, if there is one."""
    _, client, first, second = runs
    assert f"/compare?a={first}&b={second}" in client.get(f"/sessions/{second}").links("/compare")
    found = client.get(f"/compare/previous?b={second}")
    assert (found.status, found.headers["location"]) == (303, f"/compare?a={first}&b={second}")
    assert client.get(f"/compare/previous?b={first}").status == 404
    words = client.get(f"/compare?b={first}").words
    assert "There is no earlier session named" in words
    assert "There is no earlier session" not in client.get(f"/compare?b={second}").words
    assert "There is no earlier session" not in client.get(f"/compare?a={first}").words


@pytest.mark.slow
def test_only_a_session_of_the_same_task_is_a_previous_run(tmp_path: Path) -> None:
    """The link says `previous run` if the first messages are the same, and `previous session` if they differ."""
    home = a_home(tmp_path)
    ids = []
    with recording(home) as emit:
        for number, prompt in enumerate(("Count.", "Count.", "Write.")):
            run = SyntheticSession(emit, "worker", T0 + number * 100 * SECOND, seed=number + 1)
            with run.interaction(prompt):
                run.turn(text("Done."))
            ids.append(run.end("completed", None))
    with serving(home) as client:
        first, second, third = (client.get(f"/sessions/{each}").words for each in ids)
    assert "Compare with the next run" in first
    assert "Compare with the previous run" in second
    assert "Compare with the previous session" in third
    assert "previous run" not in third


def test_long_sessions_without_a_common_step_are_aligned() -> None:
    """Long sessions whose steps all differ are aligned by their calls, in bounded time."""
    long = [
        Part("tool_call", "main", turn, "bash", input_bytes=turn % 7, result_bytes=turn)
        for turn in range(2_000)
    ]
    other = [replace(part, result_bytes=-1, input_bytes=9) for part in long]
    changes = [pair.change for pair in compared(long, other[:5] + other).pairs]
    assert changes.count("changed") == len(long)
    assert changes.count("added") == 5


def test_an_empty_home_has_an_empty_form(tmp_path: Path) -> None:
    """The form of an empty home has no suggestions."""
    with serving(a_home(tmp_path)) as client:
        got = client.get("/compare")
        assert got.status == 200
        assert "<option" not in got.html.partition("<datalist")[2].partition("</datalist>")[0]


def test_identical_texts_claim_nothing_else() -> None:
    """Equal texts are called identical, not their token counts; of a cut text, only the shown part is."""
    text_of = {"Response": "Done.", "Input": "x\n(cut: 900 characters)", "Result": "7"}
    assert {each.name: each.summary for each in _changes(text_of, text_of)} == {
        "Response": "identical text; token counts may differ",
        "Input": "the shown part is identical",
        "Result": "identical text",
    }


def test_the_page_says_how_each_session_ended() -> None:
    """A failed step is named with its turn; without one, the reason is named."""
    failure = {
        "cause": "exception", "reason": "KeyError", "error_class": "KeyError", "step_kind": "tool_call",
        "step_name": "mail", "step_lane": "main", "step_turn": 1_001, "step_class": None, "step_outcome": "failed",
    }  # fmt: skip
    sub_agent = {**failure, "step_lane": "main/agent#2", "step_class": "ValueError"}
    nowhere = {**failure, "step_kind": None, "step_turn": None}
    limited = {**failure, "cause": "result", "reason": "max_turns"}
    found = [
        ending("A", "completed", 300, None, continues=False),
        ending("B", "failed", 1_000, failure, continues=True),
        ending("A", "failed", 9, sub_agent, continues=False),
        ending("A", "crashed", 9, nowhere, continues=False),
        ending("A", "failed", 9, limited, continues=False),
        ending("A", "running", 0, None, continues=False),
        ending("A", "running", 3, None, continues=False, has_sub_agents=True),
        ending("B", "failed", 1_000, failure, continues=True, has_sub_agents=True),
        ending("A", "failed", 9, sub_agent, continues=False, has_sub_agents=True),
        ending("B", "completed", 2, None, continues=False, failed_agents=["tests"]),
        ending("B", "completed", 2, None, continues=False, failed_agents=[""]),
        ending("B", "completed", 2, None, continues=False, failed_agents=["tests", "docs", ""]),
    ]
    assert found == [
        "A completed after turn 300.",
        "B continued and failed in turn 1,001: mail, KeyError.",
        "A failed in turn 1,001 of a sub-agent: mail, ValueError.",
        "A crashed after turn 9: KeyError.",
        "A failed after turn 9: max_turns.",
        "A is running.",
        "A is running, after turn 3 of the main agent.",
        "B continued and failed in turn 1,001 of the main agent: mail, KeyError.",
        "A failed in turn 1,001 of a sub-agent: mail, ValueError.",
        "B completed after turn 2, but its sub-agent tests failed.",
        "B completed after turn 2, but a sub-agent failed.",
        "B completed after turn 2, but 3 of its sub-agents failed (docs, tests).",
    ]


def test_lanes_are_named_after_the_types_of_sub_agents() -> None:
    """Lanes have the types of their agents as names; agents of the same type are numbered."""
    lanes = ("main", "main/tests#1", "main/docs#1", "main/docs#2", "main/tests#1/search#1")
    assert list(lane_names([{"b": {"lane": lane}} for lane in lanes]).values()) == [
        "main", "tests", "docs 1", "docs 2", "search",
    ]  # fmt: skip


def delegating(home: Home, seed: int, agents: tuple[str, ...], failing: str = "") -> str:
    """Record a session that starts sub-agents in this order; the call of one of them may fail."""
    with recording(home) as emit:
        run = SyntheticSession(emit, "delegating", T0 + seed * 60 * SECOND, seed=seed)
        with run.interaction("Check the release."):
            calls: dict[str, dict[str, Any]] = {}
            for number, agent in enumerate(agents):
                call_id = f"toolu_01{seed:04}{number:018}"
                asked = {
                    "type": "tool_use",
                    "id": call_id,
                    "name": "agent",
                    "input": {"for": agent},
                }
                calls[agent] = asked
            run.turn(*calls.values())
            results = []
            for agent, call in calls.items():
                outer = run.lane
                run.lane = Lane(child_lane(outer.name, call["id"]))
                with run.span("sub_agent", agent):
                    run.turn(text(f"{agent}: done"))
                run.lane = outer
                is_error = agent == failing
                answer = "out of turns" if is_error else f"{agent}: done"
                results.append(run.run_call(call, answer, is_error=is_error))
            run.results(*results)
            run.turn(text("One failed." if failing else "All passed."))
        return run.end()


@pytest.mark.slow
def test_the_head_starts_with_outcomes(tmp_path: Path) -> None:
    """The head names failed sub-agents, the first step that failed in only one session, and the first different
    content. Sub-agents are paired by their types, so another order of their starts shifts nothing.
    """
    home = a_home(tmp_path)
    first = delegating(home, 1, ("docs", "tests"))
    second = delegating(home, 2, ("tests", "docs"), failing="tests")
    with open_store(home) as store:
        steps = comparison_of(store, first, second)["steps"]
    lanes = {(step.get("b") or step["a"])["lane"]: step["change"] for step in steps}
    assert (lanes["main/docs#1"], lanes["main/tests#1"]) == ("same", "same")
    with serving(home) as client:
        page = client.get(f"/compare?a={first}&b={second}")
        words = page.words
        [step, *_] = [each for each in page.links(f"/sessions/{second}?") if "step=" in each]
        assert client.get(step).status == 200
    assert "A completed after turn 2 of the main agent." in words
    assert (
        "B completed after turn 2 of the main agent, but its sub-agent tests failed. Last failed step in B"
        in words
    )
    assert "First change of outcome: call agent in turn 1 : failed only in B" in words
    assert "First change of content: request in turn 1 : different text of the response" in words
    assert "First change of outcome: call agent in turn 1 differs" in words
    assert "#1" not in re.sub(r"/sessions/\S+", "", words)


@pytest.mark.slow
def test_a_step_has_its_turn_and_its_agent_in_both_sessions(runs: Runs) -> None:
    """The same step may have another turn in each session, and its agent another name; both are shown."""
    home, client, first, second = runs
    words = client.get(f"/compare?a={first}&b={second}").words
    assert (
        "First change of content: call find_order in turn 1 in A, turn 2 in B : different result"
        in words
    )
    assert "~ turn 5 in A, turn 6 in B request text of the response" in words
    assert "= identical main 4 in A, 5 in B request" in words
    shown = client.get(f"/compare?a={first}&b={second}&step=11").words
    assert "turn 5 in A, turn 6 in B of main, /v1/messages Step in A Step in B" in shown
    table = CliRunner().invoke(cli, ["--home", str(home.path), "diff", first, second, "--all"])
    assert re.search(r"= +main +4 in A, 5 in B +request", table.stdout)
    step = {
        "change": "same",
        "a": {"kind": "request", "lane": "main/agent#1", "turn": 5, "agent": "agent 2"},
        "b": {"kind": "request", "lane": "main/agent#1", "turn": 2, "agent": "agent 3"},
    }
    assert lane_names([step]) == {"main/agent#1": "agent 2 / agent 3"}
    changed = {**step, "change": "changed", "differs": ["calls"]}
    written = [note.text for note in two_sessions({"steps": [changed]}).layout.annotations]
    assert "5 / 2: model request" in written


@pytest.mark.slow
def test_agents_have_the_names_of_their_session_pages(tmp_path: Path) -> None:
    """Sub-agents without a type are numbered as on the pages of their sessions, also in the command."""
    home = a_home(tmp_path)
    ids = []
    with recording(home) as emit:
        for seed, answer in ((1, "One."), (2, "Two.")):
            run = SyntheticSession(emit, "fan-out", T0 + seed * 60 * SECOND, seed=seed)
            with run.interaction("Check the release."):
                call: dict[str, Any] = dict(type="tool_use", id=run.call_id(), name="investigate")
                call["input"] = {}
                run.turn(call)
                outer = run.lane
                run.lane = Lane(child_lane(outer.name, call["id"]))
                run.turn(text(answer))
                run.lane = outer
                run.results(run.run_call(call, answer))
                run.turn(text("Done."))
            ids.append(run.end())
    a, b = ids
    found = CliRunner().invoke(cli, ["--home", str(home.path), "diff", a, b, "--content"])
    with serving(home) as client:
        session = client.get(f"/sessions/{a}").words
        words = client.get(f"/compare?a={a}&b={b}").words
    assert "agent 1" in session
    assert "request agent 1: text of the response" in words
    assert re.search(r"~ +agent 1 +1 +request", found.stdout)
    assert "investigate 1" not in words


@pytest.mark.slow
def test_the_duration_is_that_of_the_session(runs: Runs) -> None:
    """The duration counts concurrent steps and steps of sub-agents once, and includes waits."""
    home, client, first, second = runs
    query = "SELECT duration_ns FROM sessions ORDER BY started_ns"
    durations = [row[0] for row in query_rows(home, query)]
    with open_store(home) as store:
        comparison = comparison_of(store, first, second)
    assert [comparison[each]["session_duration_ns"] for each in "ab"] == durations
    shown = [str(seconds(each)) for each in durations]
    words = client.get(f"/compare?a={first}&b={second}").words
    assert f"Duration {' '.join(shown)} " in words
    table = CliRunner().invoke(cli, ["--home", str(home.path), "diff", first, second])
    assert re.search(rf"^duration +{shown[0]} +{shown[1]} +", table.stdout, re.MULTILINE)
    written = [note.text for note in two_sessions(comparison).layout.annotations]
    assert {"duration", shown[0]} <= set(written)

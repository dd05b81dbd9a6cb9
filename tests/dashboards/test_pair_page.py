"""Session comparison: named in any way, aligned step by step, with differences in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.cli.inspection.diff import comparison_of
from agentobs.recording.journal.home import Home
from dashboards.app.pair_page import PAGE
from dashboards.figures import two_sessions
from dashboards.panels.pair_summary import row, totals
from tests.dashboards.opening import Client, opened
from tests.store.making import (
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
    """Two runs of an agent, of which the second calls a tool more and costs more; and a long one."""
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
    record(home, conversation(3, turns=PAGE + 20, name="long"))
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with opened(home) as made:
        yield made


def test_both_are_set_side_by_side(client: Client) -> None:
    """What changed, what is in one alone, what each step took, and the whole with differences in words."""
    got = client.get(f"/compare?a={ONE}&b={OTHER}")
    assert got.status == 200
    assert {f"/sessions/{ONE}", f"/sessions/{OTHER}"} <= set(got.links("/sessions/"))
    words = got.words
    assert "Requests 2 3 B 1 more (50%)" in words
    assert "only in B" in words
    assert "tool call weather" in words
    assert "Tool calls 0 1 B 1 more" in words
    assert "Input tokens 20 1,020 B 1,000 more (5,000%)" in words
    assert "at least $" in words
    assert "steps differ." in words


def test_the_page_says_what_the_command_says(home: Home, client: Client) -> None:
    """Its steps are those of `agentobs diff --json`."""
    answer = CliRunner().invoke(cli, ["--home", str(home.path), "diff", ONE, OTHER, "--json"])
    assert answer.exit_code == 0
    told = json.loads(answer.stdout)
    assert comparison_of(home, ONE, OTHER) == told
    changed = sum(step["change"] != "same" for step in told["steps"])
    assert (
        f"{changed} of {len(told['steps'])} steps differ."
        in client.get(f"/compare?a={ONE}&b={OTHER}").words
    )


def test_a_session_beside_itself_is_alike(client: Client) -> None:
    """Nothing differs, and the page says so."""
    words = client.get(f"/compare?a={ONE}&b={ONE}").words
    assert "All 2 steps are identical." in words
    assert "No changes." in client.get(f"/compare?a={ONE}&b={ONE}&changed=1").words


def test_sessions_are_named_in_any_way(client: Client) -> None:
    """By name, or by an end of the id; the address then has both ids."""
    got = client.get(f"/compare?a=before&b={OTHER[:8]}")
    assert (got.status, got.headers["location"]) == (303, f"/compare?a={ONE}&b={OTHER}")


def test_without_two_sessions_there_is_a_form(client: Client) -> None:
    """It offers the latest, and keeps the one that was named."""
    assert 'name="a"' in client.get("/compare").html
    one = client.get(f"/compare?a={ONE}")
    assert f'value="{ONE}"' in one.html
    assert f'<option value="{OTHER}">' in one.html
    wrong = client.get(f"/compare?a={ONE}&b=nothing-like-it")
    assert wrong.status == 404
    assert "no session with that id or name" in wrong.words
    assert "<script>" not in client.get("/compare?a=%3Cscript%3E&b=x").html


def test_only_what_differs_is_shown_on_demand_and_in_pages(client: Client) -> None:
    """A long comparison has a bounded number of rows a page."""
    got = client.get(f"/compare?a={ONE}&b={LONG}")
    assert got.html.count("<tr class=") == PAGE
    assert f"a={ONE}&b={LONG}&page=2" in got.links("?")[0]
    last = client.get(f"/compare?a={ONE}&b={LONG}&page=2")
    assert last.html.count("<tr class=") == 20
    only = client.get(f"/compare?a={ONE}&b={LONG}&changed=1")
    assert '<tr class="same"' not in only.html


def test_differences_are_told_in_words() -> None:
    """More, less, the same, and what cannot be told; money is exact, and a lower bound says so."""
    a = {"requests": 2, "cost_usd": "0.30", "unpriced": 0, "input_tokens": 10, "duration_ns": 10**9}
    b = {
        "requests": 2,
        "cost_usd": "0.15",
        "unpriced": 1,
        "cost_status": "lower_bound",
        "input_tokens": 15,
        "duration_ns": 2 * 10**9,
    }
    found = {each.name: (each.a, each.b, each.says) for each in totals(a, b)}
    assert found == {
        "Cost": ("$0.3000", "at least $0.1500", "unknown: not both values are exact"),
        "Total step time": ("1.00 s", "2.00 s", "B 1.00 s more (100%)"),
        "Requests": ("2", "2", "no difference"),
        "Input tokens": ("10", "15", "B 5 more (50%)"),
    }
    exact = {**a, "cost_status": "exact"}
    assert totals(exact, {**exact, "cost_usd": "0.15"})[0].says == "B $0.1500 less (50%)"
    for status in ("lower_bound", "estimated"):
        for pair in (
            (exact, {**exact, "cost_status": status}),
            ({**exact, "cost_status": status},) * 2,
        ):
            assert totals(*pair)[0].says == "unknown: not both values are exact"
    unknown = totals({**a, "cost_usd": None}, b)[0]
    assert (unknown.a, unknown.says) == ("unknown", "unknown: one value is unknown")


def test_each_step_says_how_sure_its_money_is() -> None:
    """What a step cost is at least, or about, so much where that is not exact, in the table and in the figure."""
    part = {"kind": "request", "lane": "main", "turn": 1, "name": "/v1/messages", "cost_usd": "0.5"}
    low, about = {**part, "cost_status": "lower_bound"}, {**part, "cost_status": "estimated"}
    step = {"change": "changed", "a": low, "b": about, "differs": []}
    told = row(step)
    assert (told["a"], told["b"]) == ("at least $0.5000", "about $0.5000")
    figure = two_sessions({"a": {}, "b": {}, "steps": [step]})
    written = [note.text for note in figure.layout.annotations]
    assert {"at least $0.5000", "about $0.5000"} <= set(written)
    hover = figure.data[-1].hovertext[0]
    assert ", at least $0.5000<br>B: " in hover
    assert hover.endswith(", about $0.5000")


def test_without_a_home_of_both_nothing_is_made_up(tmp_path: Path) -> None:
    """An empty home has a form, and no session to offer."""
    with opened(a_home(tmp_path)) as client:
        got = client.get("/compare")
        assert got.status == 200
        assert "<option" not in got.html.partition("<datalist")[2].partition("</datalist>")[0]

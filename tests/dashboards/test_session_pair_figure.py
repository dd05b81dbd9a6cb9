"""The figure of two sessions shows totals and steps as in `agentobs diff --json`, without content."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from agentobs.cli import main
from dashboards.figures.session_pair import MOST_STEPS, two_sessions
from tests.dashboards.figure_checks import HOSTILE, assert_valid, figure_text
from tests.store.recordings import (
    MODEL,
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

SECRET = "the wallet is in the fridge"


pytestmark = pytest.mark.xdist_group("dashboards_comparing")


@pytest.fixture(scope="module")
def comparison_json(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The comparison of a session with three calls and one with a different second call and an unknown cost."""
    home = a_home(tmp_path_factory.mktemp("comparing"))
    for number, names in ((1, "abc"), (2, "axc")):
        calls = [
            {"type": "tool_use", "id": f"t{each}", "name": each, "input": {"q": SECRET}}
            for each in names
        ]
        ran = [
            tool(number, f"t{each}", each, at=T0 + (3 + at) * SECOND)
            for at, each in enumerate(names)
        ]
        last = attempt(number, 2, at=T0 + 9 * SECOND, model=MODEL if number == 1 else "in-house")
        record(
            home,
            [start(number), attempt(number, 1, content=calls), *ran, last, end(number)],
        )
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(["--home", str(home.path), "diff", session_id(1), session_id(2), "--json"])
    return out.getvalue()


@pytest.fixture
def comparison(comparison_json: str) -> dict[str, Any]:
    """The same comparison, which a test may change."""
    found: dict[str, Any] = json.loads(comparison_json)
    return found


def marks_by_change(figure: Any) -> dict[str, list[float]]:
    """Return the positions of the marks by kind of change: negative for session A, positive for session B."""
    return {
        each.name: [-1 if x < 0 else 1 for x in each.x]
        for each in figure.data
        if each.type == "scatter"
    }


@pytest.mark.slow
def test_steps_are_side_by_side(comparison: dict[str, Any]) -> None:
    """Each kind of change has its own color and symbol, with a mark on each side that has the step."""
    figure = two_sessions(comparison)
    assert_valid(figure)
    assert [step["change"] for step in comparison["steps"]] == [
        "changed",
        "same",
        "removed",
        "added",
        "same",
        "changed",
    ]
    found = marks_by_change(figure)
    assert found["only in A"] == [-1]
    assert found["only in B"] == [1]
    assert found["changed"] == [-1, 1] * 2
    assert len({each.marker.symbol for each in figure.data if each.type == "scatter"}) == 4
    written = [note.text for note in figure.layout.annotations]
    assert "calls b" in " ".join(written)
    assert "A: story …010001, completed" in written


def test_totals_are_pairs_of_bars(comparison: dict[str, Any]) -> None:
    """Each total has a pair of bars relative to the larger value, with the difference in words."""
    comparison["b"]["input_tokens"] = 4 * comparison["a"]["input_tokens"]
    figure = two_sessions(comparison)
    one, other = (each for each in figure.data if each.type == "bar")
    assert (one.name, other.name) == ("A, total", "B, total")
    [at] = [at for at, text in enumerate(other.hovertext) if "uncached input tokens" in text]
    assert -4 * one.x[at] == pytest.approx(other.x[at])
    written = [note.text for note in figure.layout.annotations]
    assert f"{comparison['b']['input_tokens']:,} (300% more)" in written
    assert "2 (identical)" in written
    assert any(text.startswith("at least $") and "%" not in text for text in written)


def test_no_content_is_drawn(comparison: dict[str, Any]) -> None:
    """The figure shows that texts differ, but never the texts, whatever the comparison contains."""
    for step in comparison["steps"]:
        step["differs"] = [*step["differs"], "texts"]
        step["differences"] = [{"path": "$.x", "expected": SECRET, "actual": SECRET}]
        step["change"] = "changed"
        for side in ("a", "b"):
            if side in step:
                step[side]["texts"] = {"input": SECRET}
    shown = figure_text(two_sessions(comparison))
    assert SECRET not in shown
    assert "different content" in shown
    assert "content" in shown


def test_identical_steps_are_omitted_and_counted(comparison: dict[str, Any]) -> None:
    """Identical steps are drawn only next to a change.

    If there are too many changes, the last line contains the number of the remaining ones.
    """
    same, changed = ({**comparison["steps"][0], "change": word} for word in ("same", "changed"))
    figure = two_sessions({**comparison, "steps": [*[same] * 33, changed, *[same] * 2_000]})
    assert_valid(figure)
    written = [note.text for note in figure.layout.annotations]
    assert "32 identical steps" in written
    assert "1,999 identical steps" in written
    assert marks_by_change(figure) == {"identical": [-1, 1] * 2, "changed": [-1, 1]}
    many = two_sessions({**comparison, "steps": [changed] * 10_000})
    assert_valid(many)
    assert len(marks_by_change(many)["changed"]) == 2 * MOST_STEPS
    left = 10_000 - MOST_STEPS
    assert f"and {left:,} more steps: {left:,} changed" in figure_text(many)
    gone = {**changed, "change": "removed"}
    mixed = two_sessions(
        {**comparison, "steps": [*[changed] * MOST_STEPS, *[gone] * 141, changed, *[same] * 9]}
    )
    assert "only in A" not in marks_by_change(mixed)
    assert "and 151 more steps: 1 changed, 141 only in A" in figure_text(mixed)


def test_lanes_have_names(comparison: dict[str, Any]) -> None:
    """If there are several lanes, the steps of each lane start with its name."""
    step = {**comparison["steps"][0], "change": "changed"}
    other = {**step, "a": {**step["a"], "lane": "main/agent#1", "agent": "agent 1"}}
    other["b"] = {**other["a"], "agent": "agent 2"}
    unnamed = {**step, "a": {k: v for k, v in other["a"].items() if k != "agent"}}
    unnamed["b"] = unnamed["a"]
    for made, name in ((other, "agent 1 / agent 2"), (unnamed, "agent")):
        figure = two_sessions({**comparison, "steps": [step, made]})
        assert {"main", name} <= {note.text for note in figure.layout.annotations}


@pytest.mark.slow
def test_missing_values_and_markup(comparison: dict[str, Any]) -> None:
    """Any values can be drawn, and none of them is interpreted as markup."""
    assert_valid(two_sessions({}))

    def spoiled(value: Any, by: Any) -> Any:
        if isinstance(value, dict):
            kept = ("change", "kind")
            return {k: v if k in kept else spoiled(v, by) for k, v in value.items()}
        return [spoiled(each, by) for each in value] if isinstance(value, list) else by

    values: list[Any] = [HOSTILE, None, -1, 1e300, float("nan"), True, {}, []]
    for by in values:
        assert_valid(two_sessions(spoiled(comparison, by)))
    assert_valid(two_sessions({"a": 1, "b": [], "steps": [None, {}, {"change": HOSTILE, "a": 3}]}))

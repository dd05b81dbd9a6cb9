"""Session comparison: totals and steps as `agentobs diff --json` tells them, and nothing that was said."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from agentobs.cli import main
from dashboards.figures.session_pair import MOST_STEPS, two_sessions
from tests.dashboards.drawn import HOSTILE, hold, says
from tests.store.making import (
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
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A session of three calls, and one that makes the second of another tool, and fails to have a price."""
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
def told(printed: str) -> dict[str, Any]:
    """That comparison, which a test may change."""
    found: dict[str, Any] = json.loads(printed)
    return found


def marks(figure: Any) -> dict[str, list[float]]:
    """Return where the marks of each kind of change stand: below 0 those of A, above it those of B."""
    return {
        each.name: [-1 if x < 0 else 1 for x in each.x]
        for each in figure.data
        if each.type == "scatter"
    }


def test_steps_stand_beside_each_other(told: dict[str, Any]) -> None:
    """Each change has a mark of its own color and symbol, on the side where there is something."""
    figure = two_sessions(told)
    hold(figure)
    assert [step["change"] for step in told["steps"]] == [
        "changed",
        "same",
        "removed",
        "added",
        "same",
        "changed",
    ]
    found = marks(figure)
    assert found["only in A"] == [-1]
    assert found["only in B"] == [1]
    assert found["changed"] == [-1, 1] * 2
    assert len({each.marker.symbol for each in figure.data if each.type == "scatter"}) == 4
    written = [note.text for note in figure.layout.annotations]
    assert "calls b" in " ".join(written)
    assert "A: story …010001, completed" in written


def test_totals_are_pairs_to_the_scale_of_the_longer(told: dict[str, Any]) -> None:
    """A pair of bars for each measure that either has; the difference stands there in words."""
    told["b"]["input_tokens"] = 4 * told["a"]["input_tokens"]
    figure = two_sessions(told)
    one, other = (each for each in figure.data if each.type == "bar")
    assert (one.name, other.name) == ("A, in all", "B, in all")
    for at, text in enumerate(other.hovertext):
        if "input tokens" in text and "cache" not in text:
            assert -4 * one.x[at] == pytest.approx(other.x[at])
    written = [note.text for note in figure.layout.annotations]
    assert f"{told['b']['input_tokens']:,} (300% more)" in written
    assert "2 (the same)" in written
    assert any(text.startswith("at least $") and "%" not in text for text in written)


def test_nothing_that_was_said_is_drawn(told: dict[str, Any]) -> None:
    """Of texts that differ the figure tells that they do, whatever the comparison holds of them."""
    for step in told["steps"]:
        step["differs"] = [*step["differs"], "texts"]
        step["differences"] = [{"path": "$.x", "expected": SECRET, "actual": SECRET}]
        step["change"] = "changed"
        for side in ("a", "b"):
            if side in step:
                step[side]["texts"] = {"input": SECRET}
    shown = says(two_sessions(told))
    assert SECRET not in shown
    assert "other words" in shown
    assert "content" in shown


def test_equal_steps_are_left_out_and_counted(told: dict[str, Any]) -> None:
    """Only those beside a change are drawn; many changes end in a line that says how many more there are."""
    same, changed = ({**told["steps"][0], "change": word} for word in ("same", "changed"))
    figure = two_sessions({**told, "steps": [*[same] * 33, changed, *[same] * 2_000]})
    hold(figure)
    written = [note.text for note in figure.layout.annotations]
    assert "32 equal steps" in written
    assert "1,999 equal steps" in written
    assert marks(figure) == {"the same": [-1, 1] * 2, "changed": [-1, 1]}
    many = two_sessions({**told, "steps": [changed] * 10_000})
    hold(many)
    assert len(marks(many)["changed"]) == 2 * MOST_STEPS
    left = 10_000 - MOST_STEPS
    assert f"and {left:,} steps more: {left:,} changed" in says(many)
    gone = {**changed, "change": "removed"}
    mixed = two_sessions(
        {**told, "steps": [*[changed] * MOST_STEPS, *[gone] * 141, changed, *[same] * 9]}
    )
    assert "only in A" not in marks(mixed)
    assert "and 151 steps more: 1 changed, 141 only in A" in says(mixed)


def test_lanes_have_their_names(told: dict[str, Any]) -> None:
    """Where there are several, each begins with its name."""
    step = {**told["steps"][0], "change": "changed"}
    other = {**step, "a": {**step["a"], "lane": "main/agent#1"}}
    other["b"] = other["a"]
    written = [
        note.text for note in two_sessions({**told, "steps": [step, other]}).layout.annotations
    ]
    assert {"main", "main/agent#1"} <= set(written)


def test_what_nobody_knows_and_what_wants_to_be_markup(told: dict[str, Any]) -> None:
    """Whatever the values are it is drawn, and nothing of them is taken for markup."""
    hold(two_sessions({}))

    def spoiled(value: Any, by: Any) -> Any:
        if isinstance(value, dict):
            kept = ("change", "kind")
            return {k: v if k in kept else spoiled(v, by) for k, v in value.items()}
        return [spoiled(each, by) for each in value] if isinstance(value, list) else by

    values: list[Any] = [HOSTILE, None, -1, 1e300, float("nan"), True, {}, []]
    for by in values:
        hold(two_sessions(spoiled(told, by)))
    hold(two_sessions({"a": 1, "b": [], "steps": [None, {}, {"change": HOSTILE, "a": 3}]}))

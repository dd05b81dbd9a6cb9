"""The figure of the path of a replay, drawn from real replays that diverge from their recordings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboards.figures.divergence_path import MOST_AFTER, divergence
from replay import DivergenceError, Fixture, Replayer
from tests.dashboards.figure_checks import HOSTILE, assert_valid, figure_text
from tests.replay.agents import WEATHER, Agent, weather

pytestmark = pytest.mark.xdist_group("dashboards_divergence")

SECRET = "hail as large as eggs"


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A fixture of a session with three requests, the last two of which contain tool results."""
    return weather(tmp_path_factory.mktemp("divergence"))


def diverged_report(
    fixture: Fixture, question: str = "How is it?", **changes: Any
) -> dict[str, Any]:
    """Replay a different agent, and return the divergence report as JSON."""
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        replayed.run(Agent(**changes).answer, question)
    found: dict[str, Any] = json.loads(raised.value.divergence.json())
    return found


@pytest.fixture(scope="module")
def report(fixture: Fixture) -> dict[str, Any]:
    """The report about a tool that returned a different result, so that the third request differs."""
    return diverged_report(fixture, weather={**WEATHER, "Rome": SECRET})


def path_points(figure: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {each.name: (list(each.x), list(each.y)) for each in figure.data}


def test_the_paths_fork_at_the_first_difference(report: dict[str, Any]) -> None:
    """The matched requests are one line, which forks into the recorded path above and the replayed path below."""
    figure = divergence(report)
    assert_valid(figure)
    assert path_points(figure) == {
        "replayed as recorded": ([0, 1, 2], [0, 0, 0]),
        "recorded, but not made in the replay": ([3], [1]),
        "replayed differently": ([3], [-1]),
    }
    notes = [note.text for note in figure.layout.annotations]
    assert notes[:4] == ["lane main", "1", "2", "3"]
    written = notes[-1].split("<br>")
    assert written == [
        "request 3 of 3, turn 3",
        "a request that differs from the recording",
        "changed messages[4].content[0].content",
        "probable cause: tool result of weather",
    ]


def test_requests_that_were_not_made_are_drawn_and_counted(fixture: Fixture) -> None:
    """If a replay diverges at the first request, all recorded requests are drawn as requests that were not made."""
    figure = divergence(diverged_report(fixture, system="Be  brief."))
    assert_valid(figure)
    assert path_points(figure)["recorded, but not made in the replay"] == ([1, 2, 3], [1, 1, 1])
    assert "not made after this point:<br>2 requests" in figure_text(figure)
    assert (
        "a request that differs from the recording: only whitespace differs<br>changed system"
        in figure_text(figure)
    )


def test_content_is_shown_only_on_request(report: dict[str, Any]) -> None:
    """Without content, the figure contains neither texts, nor arguments, nor keys that the API does not define."""
    keys = ["messages", 0, "content", 0, "input", "my own key"]
    path = "$.messages[0].content[0].input['my own key']"
    report = {
        **report,
        "differences": [
            *report["differences"],
            {**report["differences"][0], "keys": keys, "path": path},
        ],
    }
    without, whole = divergence(report), divergence(report, content=True)
    assert_valid(whole)
    for said in (SECRET, WEATHER["Rome"], "Rome", "my own key"):
        assert said not in without.to_json()
        assert said in whole.to_json()
    assert "messages[0].content[0].input.…" in figure_text(without)
    own = [{**report["differences"][0], "keys": ["messages", 1, "my own key", "text"]}]
    assert "changed messages[1].…" in figure_text(divergence({**report, "differences": own}))


def test_a_long_path_is_shortened(report: dict[str, Any]) -> None:
    """Of a path with many requests, only the requests near the fork are drawn, and the others are counted."""
    figure = divergence({**report, "number": 5_000, "of": 90_000, "turn": 5_000})
    assert_valid(figure)
    assert "4,991 more" in figure_text(figure)
    assert f"{85_000 - MOST_AFTER:,} more" in figure_text(figure)
    notes = [note.text for note in figure.layout.annotations]
    for number in (1, 2, *range(4_994, 5_007)):
        assert f"{number:,}" in notes
    assert "3" not in notes
    line = figure.data[0]
    assert len([x for x in line.x if x is not None]) == 9
    assert None in line.y


def test_an_additional_request(report: dict[str, Any]) -> None:
    """If the recording ended before the divergence, there is no recorded path after the fork."""
    figure = divergence({**report, "kind": "extra", "number": 4, "of": 3})
    assert_valid(figure)
    assert "recorded, but not made in the replay" not in path_points(figure)
    assert "the recording ends before this request" in figure_text(figure)


def test_other_lanes_have_progress_bars(report: dict[str, Any]) -> None:
    """Each other lane has a bar with its share of matched requests; if there are many lanes, some are only counted."""
    lanes = [{"lane": f"main/agent#{n}", "asked": 1, "of": 4} for n in range(1, 21)]
    figure = divergence({**report, "lanes": [*report["lanes"], *lanes]})
    assert_valid(figure)
    rest, done = figure.data[-2:]
    assert [a / b for a, b in zip(done.x, rest.x, strict=True)] == [0.25] * 8
    assert figure.layout.yaxis.ticktext[3] == "main/agent#1"
    assert "and 12 more lanes" in figure_text(figure)


def test_missing_values_and_markup(report: dict[str, Any]) -> None:
    """Any report can be drawn, and none of its values is interpreted as markup."""
    assert not divergence({}).data
    assert_valid(divergence({}))
    lanes = [*report["lanes"], {"lane": HOSTILE, "asked": 3, "of": 1}]

    def spoiled(value: Any, by: Any) -> Any:
        if isinstance(value, dict):
            return {k: spoiled(v, by) for k, v in value.items()}
        return [spoiled(each, by) for each in value] if isinstance(value, list) else by

    values: list[Any] = [HOSTILE, None, -1, 1e300, float("nan"), True, {}, [], 10**30]
    for by in values:
        odd = spoiled({**report, "lanes": lanes}, by)
        assert_valid(divergence({**odd, "kind": by, "number": 3, "of": 7}, content=True))
        assert_valid(divergence(odd))

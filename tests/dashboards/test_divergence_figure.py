"""The path of a replay: drawn from real replays that part from their recordings, with words only where asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboards.figures.divergence_path import MOST_AFTER, divergence
from replay import DivergenceError, Fixture, Replayer
from tests.dashboards.drawn import HOSTILE, hold, says
from tests.replay.agents import WEATHER, Agent, weather

pytestmark = pytest.mark.xdist_group("dashboards_divergence")

SECRET = "hail as large as eggs"


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session of three requests, the last two with results of tools."""
    return weather(tmp_path_factory.mktemp("divergence"))


def parted(fixture: Fixture, question: str = "How is it?", **changes: Any) -> dict[str, Any]:
    """Replay an agent that is another one, and return the report as JSON."""
    with pytest.raises(DivergenceError) as raised, Replayer(fixture) as replayed:
        replayed.run(Agent(**changes).answer, question)
    found: dict[str, Any] = json.loads(raised.value.divergence.json())
    return found


@pytest.fixture(scope="module")
def told(fixture: Fixture) -> dict[str, Any]:
    """A tool returned something else, so that the third request is another one."""
    return parted(fixture, weather={**WEATHER, "Rome": SECRET})


def drawn(figure: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {each.name: (list(each.x), list(each.y)) for each in figure.data}


def test_the_paths_part_at_the_first_request_that_differs(told: dict[str, Any]) -> None:
    """What matched is one line; from there the recorded way goes up and the replayed one down."""
    figure = divergence(told)
    hold(figure)
    assert drawn(figure) == {
        "replayed as recorded": ([0, 1, 2], [0, 0, 0]),
        "recorded, never made": ([3], [1]),
        "replayed otherwise": ([3], [-1]),
    }
    notes = [note.text for note in figure.layout.annotations]
    assert notes[:4] == ["lane main", "1", "2", "3"]
    written = notes[-1].split("<br>")
    assert written == [
        "request 3 of 3, turn 3",
        "a request that differs from the recording",
        "changed messages[4].content[0].content",
        "probably by: tool result of weather",
    ]


def test_what_was_never_asked_is_drawn_and_counted(fixture: Fixture) -> None:
    """A replay that parts at once shows all that was recorded, unasked."""
    figure = divergence(parted(fixture, system="Be  brief."))
    hold(figure)
    assert drawn(figure)["recorded, never made"] == ([1, 2, 3], [1, 1, 1])
    assert "not made after it:<br>2 requests" in says(figure)
    assert "a request that differs from the recording: blanks only<br>changed system" in says(
        figure
    )


def test_words_are_shown_only_with_content(told: dict[str, Any]) -> None:
    """Neither texts, nor arguments, nor keys that somebody made stand in the figure unless that was asked for."""
    keys = ["messages", 0, "content", 0, "input", "my own key"]
    path = "$.messages[0].content[0].input['my own key']"
    told = {
        **told,
        "differences": [
            *told["differences"],
            {**told["differences"][0], "keys": keys, "path": path},
        ],
    }
    without, whole = divergence(told), divergence(told, content=True)
    hold(whole)
    for said in (SECRET, WEATHER["Rome"], "Rome", "my own key"):
        assert said not in without.to_json()
        assert said in whole.to_json()
    assert "messages[0].content[0].input.…" in says(without)
    own = [{**told["differences"][0], "keys": ["messages", 1, "my own key", "text"]}]
    assert "changed messages[1].…" in says(divergence({**told, "differences": own}))


def test_a_long_way_is_shortened(told: dict[str, Any]) -> None:
    """Of many requests those near the fork are drawn, and the others counted."""
    figure = divergence({**told, "number": 5_000, "of": 90_000, "turn": 5_000})
    hold(figure)
    assert "4,991 more" in says(figure)
    assert f"{85_000 - MOST_AFTER:,} more" in says(figure)
    notes = [note.text for note in figure.layout.annotations]
    for number in (1, 2, *range(4_994, 5_007)):
        assert f"{number:,}" in notes
    assert "3" not in notes
    line = figure.data[0]
    assert len([x for x in line.x if x is not None]) == 9
    assert None in line.y


def test_one_request_more_than_recorded(told: dict[str, Any]) -> None:
    """Where the recording had ended there is no recorded way on."""
    figure = divergence({**told, "kind": "extra", "number": 4, "of": 3})
    hold(figure)
    assert "recorded, never made" not in drawn(figure)
    assert "the recording ends before it" in says(figure)


def test_other_lanes_tell_how_far_they_came(told: dict[str, Any]) -> None:
    """Each has a bar of its own, as long as its share; many lanes end in their number."""
    lanes = [{"lane": f"main/agent#{n}", "asked": 1, "of": 4} for n in range(1, 21)]
    figure = divergence({**told, "lanes": [*told["lanes"], *lanes]})
    hold(figure)
    rest, done = figure.data[-2:]
    assert [a / b for a, b in zip(done.x, rest.x, strict=True)] == [0.25] * 8
    assert figure.layout.yaxis.ticktext[3] == "main/agent#1"
    assert "and 12 lanes more" in says(figure)


def test_what_nobody_knows_and_what_wants_to_be_markup(told: dict[str, Any]) -> None:
    """Whatever the report holds it is drawn, and nothing of it is taken for markup."""
    assert not divergence({}).data
    hold(divergence({}))
    lanes = [*told["lanes"], {"lane": HOSTILE, "asked": 3, "of": 1}]

    def spoiled(value: Any, by: Any) -> Any:
        if isinstance(value, dict):
            return {k: spoiled(v, by) for k, v in value.items()}
        return [spoiled(each, by) for each in value] if isinstance(value, list) else by

    values: list[Any] = [HOSTILE, None, -1, 1e300, float("nan"), True, {}, [], 10**30]
    for by in values:
        odd = spoiled({**told, "lanes": lanes}, by)
        hold(divergence({**odd, "kind": by, "number": 3, "of": 7}, content=True))
        hold(divergence(odd))

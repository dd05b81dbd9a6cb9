"""Turns without a complete response, which do not count as turns of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class UnfinishedTurns(NamedTuple):
    """The number of turns without a complete response, and a word for them."""

    number: int
    word: str
    """`cut` if the response of each was cut, or `without a response`."""


def unfinished_turns(rows: Sequence[Mapping[str, Any]]) -> UnfinishedTurns | None:
    """Return how many turns of a session got no complete response; None if all got one.

    Args:
        rows: the rows of `internal/unfinished_turns`.
    """
    return of_outcomes([str(row["stop_reason"]) for row in rows])


def of_outcomes(outcomes: Sequence[str]) -> UnfinishedTurns | None:
    """Return how many turns got no complete response; None if there are none.

    Args:
        outcomes: how the last attempt of each of these turns ended: an outcome, or the words for it.
    """
    if not outcomes:
        return None
    is_cut = all(each.startswith(("cut", "the response was cut")) for each in outcomes)
    return UnfinishedTurns(len(outcomes), "cut" if is_cut else "without a response")


def unfinished_of(about: Mapping[str, Any]) -> UnfinishedTurns | None:
    """Return how many turns of a compared session got no complete response; None if all got one.

    Args:
        about: its description in the JSON of `agentobs diff`.
    """
    found = about.get("unfinished_turns")
    return UnfinishedTurns(found["number"], found["word"]) if found else None


def turns_in_words(complete: int, unfinished: UnfinishedTurns | None) -> str:
    """Return the number of turns, such as `3 turns`; with unfinished ones: `3 complete turns and 1 cut off`.

    Args:
        complete: the number of turns with a complete response.
        unfinished: the other turns; None if there are none.
    """
    noun = f"turn{'s' * (complete != 1)}"
    if unfinished is None:
        return f"{complete:,} {noun}"
    return f"{complete:,} complete {noun} and {_rest(unfinished)}"


def unfinished_words(unfinished: UnfinishedTurns | None) -> str:
    """Return what follows a number of turns below the label "Turns", such as ` complete and 1 cut off`; empty if all
    turns got a complete response.
    """
    if unfinished is None:
        return ""
    return f" complete and {_rest(unfinished)}"


def _rest(unfinished: UnfinishedTurns) -> str:
    return f"{unfinished.number:,} {_WORDS.get(unfinished.word, unfinished.word)}"


_WORDS = {"cut": "cut off"}

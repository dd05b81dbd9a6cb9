"""Sent turns: the turns that a request adds to an earlier one."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from agentobs.provider.dialect import Dialect, Turn
from agentobs.recording.vault.body_deltas import Body


class SentTurns(NamedTuple):
    """The turns that a request adds to an earlier one."""

    new: list[Turn]
    """The turns after the messages that the request shares with its base."""
    later: list[Turn]
    """The turns after the messages of the request's origin."""
    last: list[Turn]
    """The turns after the last response, latest first; of repeated turns, only the last one."""

    @property
    def is_prompt(self) -> bool:
        """Whether the request ends with a prompt: its user messages after the last response contain no tool results.

        Clients may split them into several messages, such as results in one and instructions in the next.
        """
        has_user_turn = any(turn.role == "user" for turn in self.last)
        return has_user_turn and not any(turn.results for turn in self.last)


def sent_turns(body: Body, dialect: Dialect) -> SentTurns:
    """Return the turns that a request adds."""
    new = [dialect.turn(each) for each in body.new_messages if isinstance(each, dict)]
    known = {id(turn.raw): turn for turn in new}
    later = [
        known.get(id(each)) or dialect.turn(each)
        for each in body.later_messages
        if isinstance(each, dict)
    ]
    ending = new
    if not body.new_messages and isinstance(body.last_message, dict):
        ending = [dialect.turn(body.last_message)]
    last = list(takewhile(lambda turn: turn.role != "assistant", reversed(ending)))
    return SentTurns(new, later, last)

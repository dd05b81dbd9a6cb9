"""Pass a conversation's grants and denials to its sub-agents, and merge theirs back.

Both happen at points that do not depend on the clock: down when a call starts, up when its result is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentobs.agent.permissions import Denials, Rule
from agentobs.agent.state import Conversation


@dataclass(frozen=True, slots=True)
class Trust:
    """The grants and denials of a conversation when a call started."""

    grants: frozenset[Rule]
    """Calls that a person had allowed for the rest of the conversation."""
    denials: Denials
    """How often the classifier had denied its calls, including those of sub-agents that were merged."""


def trust_in(talk: Conversation) -> Trust:
    """Return the current grants and denials of a conversation."""
    return Trust(talk.grants, talk.denials)


def hand_down(trust: Trust, child: Conversation) -> None:
    """Give an agent its starter's grants and denials, which already include everything the agent did before."""
    child.grants |= trust.grants
    child.denials = trust.denials


def hand_up(child: Conversation, began: Denials, parent: Conversation) -> None:
    """Merge an agent's grants and denials, as if its calls had been made here after all others.

    Args:
        child: the agent's conversation.
        began: the denials that it started with.
        parent: the conversation of its starter.
    """
    parent.grants |= child.grants
    more = child.denials.in_all - began.in_all
    was_allowed = child.denials.in_a_row < began.in_a_row + more
    in_a_row = child.denials.in_a_row if was_allowed else parent.denials.in_a_row + more
    parent.denials = Denials(in_a_row, parent.denials.in_all + more)

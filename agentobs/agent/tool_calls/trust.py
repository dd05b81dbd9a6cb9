"""Trust: what was granted to a conversation and denied in it, handed down to agents that it starts, and up again.

Both happen at points that no clock decides: down where a call begins, up where its result is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentobs.agent.permissions import Denials, Rule
from agentobs.agent.state import Conversation


@dataclass(frozen=True, slots=True)
class Trust:
    """How a conversation stood when a call of it began."""

    grants: frozenset[Rule]
    """What a person had permitted for the rest of it."""
    denials: Denials
    """How often the classifier had denied calls of it, and of the agents that it had heard of."""


def trust_in(talk: Conversation) -> Trust:
    """Return how a conversation stands."""
    return Trust(talk.grants, talk.denials)


def hand_down(trust: Trust, child: Conversation) -> None:
    """Let an agent begin with what holds for its starter, which has heard of all that the agent did before."""
    child.grants |= trust.grants
    child.denials = trust.denials


def hand_up(child: Conversation, began: Denials, parent: Conversation) -> None:
    """Let a conversation hear of an agent, as if its calls had been made here after all others.

    Args:
        child: the agent's conversation.
        began: the denials that it began with.
        parent: the conversation of who started it.
    """
    parent.grants |= child.grants
    more = child.denials.in_all - began.in_all
    was_allowed = child.denials.in_a_row < began.in_a_row + more
    in_a_row = child.denials.in_a_row if was_allowed else parent.denials.in_a_row + more
    parent.denials = Denials(in_a_row, parent.denials.in_all + more)

"""Copy grants, denials and recent runs of tools to a sub-agent, and merge those of the sub-agent back.

They are copied when the call that starts the agent starts, and merged when the result of this call is reported. These
points do not depend on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentobs.agent.permissions import Denials, Rule
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool_runs import ToolRuns


@dataclass(frozen=True, slots=True)
class Trust:
    """The grants and denials of a conversation when a call started."""

    grants: frozenset[Rule]
    """Rules for calls that a person had allowed for the rest of the conversation."""
    denials: Denials
    """How often the classifier had denied calls of the conversation and of its merged sub-agents."""
    tool_runs: ToolRuns = field(default_factory=ToolRuns)
    """The recent runs of tools of the conversation and of its merged sub-agents."""


def trust_in(conversation: Conversation) -> Trust:
    """Return the current grants, denials and recent runs of tools of a conversation."""
    return Trust(conversation.grants, conversation.denials, conversation.tool_runs)


def hand_down(trust: Trust, child: Conversation) -> None:
    """Copy the grants, denials and recent runs of tools of the starter to a sub-agent.

    They replace the denials and the runs of a resumed sub-agent, because those of the starter already include them.
    """
    child.grants |= trust.grants
    child.denials = trust.denials
    child.tool_runs = trust.tool_runs.in_turn(child.turns)


def hand_up(
    child: Conversation,
    initial_denials: Denials,
    initial_tool_runs: ToolRuns,
    parent: Conversation,
) -> None:
    """Merge the grants, denials and recent runs of tools of a sub-agent into its starter.

    The result is the same as if the starter had made the sub-agent's calls last.

    Args:
        child: the conversation of the sub-agent.
        initial_denials: the denials with which the sub-agent started.
        initial_tool_runs: the recent runs of tools with which the sub-agent started.
        parent: the conversation of its starter.
    """
    if child.tool_runs.runs:
        new_runs = ToolRuns(tuple(child.tool_runs.since(initial_tool_runs))).in_turn(parent.turns)
        parent.tool_runs = parent.tool_runs.after(new_runs.runs)
    parent.grants |= child.grants
    new_denials = child.denials.in_all - initial_denials.in_all
    was_allowed = child.denials.in_a_row < initial_denials.in_a_row + new_denials
    in_a_row = child.denials.in_a_row if was_allowed else parent.denials.in_a_row + new_denials
    parent.denials = Denials(in_a_row, parent.denials.in_all + new_denials)

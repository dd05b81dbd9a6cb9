"""Callables that connect an agent with the recorder and the store; pass them to `live_world`.

from agentobs import wiring
from agentobs.agent import live_world

world = live_world(client, tools, keep=wiring.keep_result, load=wiring.load_conversation)
"""

from __future__ import annotations

from agentobs.recording.result_files import keep_result
from agentobs.store.analysis.conversations import load_conversation
from agentobs.store.billing.daily_spend import meter_of, spent_today

__all__ = ["keep_result", "load_conversation", "meter_of", "spent_today"]

"""Responses of the provider for the scripted agents, which do not stream."""

from __future__ import annotations

import json

from agentobs.records.exchanges import Answer, Chunk


def message(*content: dict[str, object], number: int) -> Answer:
    """Return a response that is not streamed."""
    body = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": content,
        "stop_reason": "tool_use" if content[0]["type"] == "tool_use" else "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    data = json.dumps(body).encode()
    return Answer(200, {"content-type": "application/json"}, (Chunk(data, 0),), "complete")

"""The scripted responses of the provider to the conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.agent.provider import Reply, call, error, message, streamed, text, unstreamed
from tests.openinference.conversations import MODEL


def usage(**counts: Any) -> dict[str, Any]:
    return {
        "input_tokens": 11,
        "output_tokens": 60,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        **counts,
    }


def answer(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    return message(*blocks, **{"stop_reason": stop, "model": MODEL, "usage": usage(), **more})


THOUGHT = {"type": "thinking", "thinking": "Let me think.", "signature": "c2ln"}
THINKING = answer(
    THOUGHT, text("Seven."), usage=usage(output_tokens_details={"thinking_tokens": 25})
)
OVERLOADED = error(529, "overloaded_error", retry="true", retry_after_ms="1")
WRITTEN = {
    "cache_creation_input_tokens": 70,
    "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 20},
}
FOUND: list[dict[str, Any]] = [
    {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "sky"},
        "caller": {"type": "direct"},
    },
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "caller": {"type": "direct"},
        "content": [
            {
                "type": "web_search_result",
                "url": "https://example.com",
                "title": "Sky",
                "encrypted_content": "c2ln",
                "page_age": None,
            }
        ],
    },
    {
        "type": "text",
        "text": "It is blue.",
        "citations": [
            {
                "type": "web_search_result_location",
                "url": "https://example.com",
                "title": "Sky",
                "encrypted_index": "c2ln",
                "cited_text": "blue",
            }
        ],
    },
]
SEARCHED = usage(server_tool_use={"web_search_requests": 1, "web_fetch_requests": 0})
REPLIES: Mapping[str, list[Reply]] = {
    "ask": [unstreamed(answer(text("Hi.")))],
    "stream": [streamed(THINKING), streamed(THINKING)],
    "call_tools": [
        unstreamed(
            answer(
                text("I look."),
                call("toolu_1", "weather", city="Rome"),
                call("toolu_2", "weather", city="Atlantis"),
            )
        ),
        streamed(answer(text("Sunny."))),
    ],
    "retry": [OVERLOADED, unstreamed(answer(text("Hi.")))],
    "cache": [
        unstreamed(answer(text("Hi."), usage=usage(**WRITTEN))),
        unstreamed(answer(text("Hi."), usage=usage(cache_read_input_tokens=70))),
    ],
    "search": [unstreamed(answer(*FOUND, usage=SEARCHED))],
    "count": [unstreamed({"input_tokens": 14})],
    "fail": [
        error(400, "invalid_request_error", text="it is no good"),
        error(403, "permission_error", text="it is not allowed"),
    ],
}
"""The responses by the name of the conversation, in order."""

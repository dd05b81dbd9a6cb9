"""Scenarios of the loop: provider failures, cut responses, fallback models."""

from __future__ import annotations

from pathlib import Path

from agentobs.agent import tool
from tests.agent.provider import (
    call,
    cut_after,
    error,
    error_in_stream,
    message,
    streamed,
    text,
    whole,
)
from tests.agent.scenario import Outside, Scenario

OTHER = "claude-other-1"
DONE = message(text("Done."))
OVERLOADED = error(529, "overloaded_error", retry_after_ms="1")
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}
OVERFLOW = (
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or "
    "`max_tokens` and try again"
)


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def _refreshing(folder: Path) -> Outside:
    del folder
    return Outside(live={"refresh": lambda: True})


SCENARIOS: dict[str, Scenario] = {
    "refreshed-credentials": Scenario(
        "A 401 is followed by the same request with new credentials.",
        [error(401, "authentication_error", retry="false"), streamed(DONE)],
        outside=_refreshing,
    ),
    "lowered-max-tokens": Scenario(
        "Where prompt and answer do not fit together, the answer is given what is left.",
        [error(400, "invalid_request_error", text=OVERFLOW), streamed(DONE)],
        options={"max_tokens": 20_000},
    ),
    "fallback-model": Scenario(
        "After three overloads another model goes on; what had come is void, and what was thought goes.",
        [
            streamed(message(THOUGHT, call("a", "look", where="box"))),
            OVERLOADED,
            error_in_stream("overloaded_error"),
            OVERLOADED,
            streamed(message(call("b", "look", where="bag"))),
            streamed(DONE),
        ],
        [look],
        options={"fallback_model": OTHER},
    ),
    "unstreamed": Scenario(
        "Three streams in a row break before any content; then the answer comes in one piece.",
        [*[cut_after(DONE, 2)] * 3, whole(DONE)],
    ),
    "raised-max-tokens": Scenario(
        "An answer that was cut is void, and asked for again with more room.",
        [streamed(message(text("Once upon"), stop_reason="max_tokens")), streamed(DONE)],
    ),
    "continued-answer": Scenario(
        "The model goes on from an answer that was cut, three times at most.",
        [
            streamed(message(text(words), stop_reason="max_tokens"))
            for words in ("void", "One, ", "two, ", "three, ", "four")
        ],
    ),
    "paused-answer": Scenario(
        "An answer that the provider paused goes back as it is.",
        [streamed(message(text("Looking."), stop_reason="pause_turn")), streamed(DONE)],
    ),
    "window-full": Scenario(
        "An answer fills the model's window: the conversation has to be shorter.",
        [streamed(message(text("And"), stop_reason="model_context_window_exceeded"))],
    ),
    "unattended": Scenario(
        "Where nobody attends, a long wait is cut into pieces, and each is told.",
        [error(429, "rate_limit_error", retry_after="61"), streamed(DONE)],
        options={"unattended": True},
    ),
    "circuit-breaker": Scenario(
        "After five requests in a row that failed for good the provider is not asked.",
        [error(503, "api_error", retry="false")] * 5,
        prompts=("One", "Two", "Three", "Four", "Five", "Six", "Seven"),
    ),
    "unattended-circuit": Scenario(
        "Where nobody attends, the run waits until the circuit has cooled down.",
        [*[error(503, "api_error", retry="false")] * 5, streamed(DONE)],
        prompts=("One", "Two", "Three", "Four", "Five", "Six"),
        options={"unattended": True},
    ),
    "model-limit": Scenario(
        "A model that may say no more than it was let goes on from its cut answer.",
        [
            streamed(message(text("One, "), stop_reason="max_tokens")),
            error(
                400, "invalid_request_error", text="max_tokens: 64000 > 8192, which is the maximum"
            ),
            streamed(message(text("two, "), stop_reason="max_tokens")),
            streamed(DONE),
        ],
        options={"max_tokens": 8192},
    ),
    "bounded-retries": Scenario(
        "A server error is tried again so many times, and then stands.",
        [error(500, "api_error")] * 2,
        options={"max_retries": 1},
    ),
}

"""Scenarios of the loop: provider failures, truncated responses, fallback models."""

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
    unstreamed,
)
from tests.agent.scenario import ExternalInput, Scenario

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


def _refreshing(folder: Path) -> ExternalInput:
    del folder
    return ExternalInput(live={"refresh": lambda: True})


SCENARIOS: dict[str, Scenario] = {
    "refreshed-credentials": Scenario(
        "After a 401, the same request is sent with new credentials.",
        [error(401, "authentication_error", retry="false"), streamed(DONE)],
        external_input=_refreshing,
    ),
    "lowered-max-tokens": Scenario(
        "If prompt and `max_tokens` exceed the window, `max_tokens` is lowered to what is left.",
        [error(400, "invalid_request_error", text=OVERFLOW), streamed(DONE)],
        options={"max_tokens": 20_000},
    ),
    "fallback-model": Scenario(
        "After three overloads the fallback model continues; the partial response is void, and "
        "thinking is removed.",
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
        "Three consecutive streams break before any content; after them, the request is not "
        "streamed.",
        [*[cut_after(DONE, 2)] * 3, unstreamed(DONE)],
    ),
    "raised-max-tokens": Scenario(
        "A truncated response is void, and requested again with a higher limit.",
        [streamed(message(text("Once upon"), stop_reason="max_tokens")), streamed(DONE)],
    ),
    "continued-answer": Scenario(
        "The model continues a truncated response, at most three times.",
        [
            streamed(message(text(words), stop_reason="max_tokens"))
            for words in ("void", "One, ", "two, ", "three, ", "four")
        ],
    ),
    "paused-answer": Scenario(
        "A response that the provider paused is sent back unchanged.",
        [streamed(message(text("Looking."), stop_reason="pause_turn")), streamed(DONE)],
    ),
    "window-full": Scenario(
        "A response fills the window of the model: the conversation must become shorter.",
        [streamed(message(text("And"), stop_reason="model_context_window_exceeded"))],
    ),
    "unattended": Scenario(
        "In an unattended run, a long wait is split into parts, and each part is reported.",
        [error(429, "rate_limit_error", retry_after="61"), streamed(DONE)],
        options={"unattended": True},
    ),
    "circuit-breaker": Scenario(
        "After five consecutive requests that failed permanently, no request is sent to the "
        "provider.",
        [error(503, "api_error", retry="false")] * 5,
        prompts=("One", "Two", "Three", "Four", "Five", "Six", "Seven"),
    ),
    "unattended-circuit": Scenario(
        "An unattended run waits until the circuit breaker closes.",
        [*[error(503, "api_error", retry="false")] * 5, streamed(DONE)],
        prompts=("One", "Two", "Three", "Four", "Five", "Six"),
        options={"unattended": True},
    ),
    "model-limit": Scenario(
        "A model whose maximum does not allow a higher limit continues its truncated response.",
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
        "A server error is retried a number of times, and then ends the run.",
        [error(500, "api_error")] * 2,
        options={"max_retries": 1},
    ),
}

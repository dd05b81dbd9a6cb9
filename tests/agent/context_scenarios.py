"""Scenarios of the loop: conversations that get too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentobs.agent import Abort, Budget, Conversation, Event, Result, tool
from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.world import World
from tests.agent.agent_runs import options
from tests.agent.provider import Reply, call, error, message, streamed, text
from tests.agent.scenario import ExternalInput, Scenario

SMALL = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500, kept_results=1)
"""A context whose window allows a conversation of 2,000 tokens."""

WIDE = Context(window_tokens=20_000, summary_tokens=500, reserve_tokens=17_500, kept_results=1)
"""A context with the same threshold, whose window is not almost full."""

TOO_LONG = error(400, "invalid_request_error", text="prompt is too long")
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2lnbmVkIQ=="}


@tool(read_only=True, paths=("where",))
def read(where: str) -> str:
    """Read a file."""
    return f"{where}: " + "y" * 2450


@tool(read_only=True, paths=("where",))
def skim(where: str) -> str:
    """Read the beginning of a file."""
    return f"{where}: " + "y" * 500


@tool(read_only=True)
def peek(where: str) -> str:
    """Look at something small."""
    return where


def response(tokens: int, *content: dict[str, Any], **more: Any) -> Reply:
    """Return a response whose usage states that the conversation has this many tokens."""
    usage = {"input_tokens": tokens - 10, "output_tokens": 10}
    return streamed(message(*content, usage=usage, **more))


def reads(*tokens: int) -> list[Reply]:
    return [
        response(count, THOUGHT, call(f"toolu_{name}", "read", where=f"{name}.txt"))
        for count, name in zip(tokens, "abcdef", strict=False)
    ]


def long_responses(*tokens: int) -> list[Reply]:
    """Return responses with so much text that a summary is needed."""
    return [
        response(count, THOUGHT, text("z" * 3600), call(f"toolu_{name}", "peek", where=name))
        for count, name in zip(tokens, "abcdef", strict=False)
    ]


SUMMARY = response(2500, text("They looked for the key in a and b, and found nothing."))
REJECTED = error(400, "invalid_request_error", text="no")
DONE = response(300, text("Done."))
WINDOW_FULL = response(2990, text("So the"), stop_reason="model_context_window_exceeded")
"""Synthetic: no recorded traffic contains this stop reason."""


def _stopped_during_compaction(folder: Path) -> ExternalInput:
    """Return an external input that stops the run when the session's memory is requested."""
    abort = Abort()

    def on(event: Event) -> None:
        if isinstance(event, Result):
            abort.clear()

    def remembered() -> None:
        if not stopped:
            stopped.append(True)
            abort.stop()

    stopped: list[bool] = []
    return ExternalInput(abort=abort, on=on, live={"memory": remembered})


async def _compacted_by_user(world: World) -> Conversation:
    """Return a conversation that the user has compacted before the run continues it."""
    history = [
        {"role": role, "content": [text(f"{number} " + "z" * 3000)]}
        for number in range(3)
        for role in ("user", "assistant")
    ]
    conversation = Conversation(messages=tuple(history), turns=3)
    assert await compact(conversation, world=world, options=options()) is not None
    return conversation


SCENARIOS: dict[str, Scenario] = {
    "trimmed": Scenario(
        "At the threshold, old tool results are replaced by notes; the latest results are kept.",
        [*reads(100, 820, 1540), DONE],
        [read],
        options={"context": SMALL},
    ),
    "dropped": Scenario(
        "If no result can be trimmed, a few of the oldest groups are dropped; the first prompt is "
        "kept.",
        [
            *(
                response(100 + 75 * n, text("z" * 300), call(f"t{n}", "peek", where="here"))
                for n in range(24)
            ),
            response(2000, text("z" * 300), call("last", "peek", where="x")),
            DONE,
        ],
        [peek],
        options={"context": SMALL, "budget": Budget(repeated_turns=None)},
    ),
    "many-results-at-once": Scenario(
        "If there is nothing to summarize yet, results that the model has not seen are trimmed; the"
        " last one is kept.",
        [
            response(300, *(call(f"toolu_{n}", "read", where=f"{n}.txt") for n in range(8))),
            DONE,
        ],
        [read],
        options={"context": SMALL},
    ),
    "summary-cut": Scenario(
        "A summary that was truncated at its limit is requested once more, shorter.",
        [
            *long_responses(1200, 2400),
            response(2500, text("They looked"), stop_reason="max_tokens"),
            SUMMARY,
            DONE,
        ],
        [peek],
        options={"context": SMALL},
    ),
    "paused-after-compaction": Scenario(
        "The provider compacts the conversation and pauses; its response is sent back, and the "
        "model continues.",
        [
            streamed(
                message(
                    {"type": "compaction", "content": "They looked for the key."},
                    stop_reason="compaction",
                )
            ),
            DONE,
        ],
    ),
    "remembered": Scenario(
        "The session's memory takes the place of a summary; a replay does not call the memory "
        "function.",
        [*long_responses(1200, 2400), DONE],
        [peek],
        options={"context": SMALL},
        external_input=lambda folder: ExternalInput(
            live={"memory": lambda: "They looked for the key."}
        ),
    ),
    "summarized": Scenario(
        "A summary is requested in a separate lane; the conversation continues with the summary, "
        "the last group, and a file that was read before.",
        [
            response(900, call("toolu_r", "skim", where="r.txt"), text("z" * 3600)),
            *long_responses(1800, 2900),
            SUMMARY,
            DONE,
        ],
        [skim, peek],
        options={"context": SMALL},
    ),
    "made-shorter-by-hand": Scenario(
        "A user has a conversation compacted; the next run continues with its summary and its last "
        "response.",
        [SUMMARY, DONE],
        start_conversation=_compacted_by_user,
    ),
    "summary-too-long": Scenario(
        "A summary request that is too long drops its oldest groups and is sent again.",
        [*long_responses(400, 800, 2400), TOO_LONG, TOO_LONG, SUMMARY, DONE],
        [peek],
        options={"context": SMALL},
    ),
    "made-shorter-once": Scenario(
        "A prompt that the provider rejects as too long is compacted and sent again, once per "
        "conversation; the second time the run ends.",
        [*long_responses(300, 600, 900), TOO_LONG, SUMMARY, DONE, TOO_LONG],
        [peek],
        prompts=("Find the key", "And now?"),
    ),
    "full-window-made-shorter": Scenario(
        "A response that fills the window is void; the conversation is compacted and the request "
        "sent again.",
        [*long_responses(300, 600), WINDOW_FULL, SUMMARY, DONE],
        [peek],
    ),
    "compaction-given-up": Scenario(
        "After three consecutive failures, the conversation is no longer compacted automatically.",
        [
            *long_responses(1200),
            *(
                reply
                for each in long_responses(0, 2400, 3600, 4800)[1:]
                for reply in (each, REJECTED)
            ),
            *long_responses(0, 0, 0, 0, 6000)[4:],
            DONE,
        ],
        [peek],
        options={"context": WIDE},
    ),
    "nudged": Scenario(
        "A model that stops with tokens left in its budget is asked to continue, until this has "
        "little effect.",
        [response(100, text(word)) for word in ("One", "Two", "Three", "Four")],
        options={"token_budget": 5000},
    ),
    "stopped-in-compaction": Scenario(
        "Stopped before the summary request was sent; the next run of the conversation sends it.",
        [*long_responses(1200, 2400), SUMMARY, DONE],
        [peek],
        prompts=("Find the key", "Go on"),
        options={"context": SMALL},
        external_input=_stopped_during_compaction,
    ),
}

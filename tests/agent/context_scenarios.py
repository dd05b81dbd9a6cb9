"""Scenarios of the loop: conversations that get too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentobs.agent import Abort, Conversation, Event, Result, tool
from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.world import World
from tests.agent.provider import Reply, call, error, message, streamed, text
from tests.agent.scenario import Outside, Scenario
from tests.agent.scene import options

SMALL = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500, kept_results=1)
"""A window in which a conversation has 2,000 tokens."""

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


def said(tokens: int, *content: dict[str, Any], **more: Any) -> Reply:
    """A response with which the conversation has this many tokens."""
    usage = {"input_tokens": tokens - 10, "output_tokens": 10}
    return streamed(message(*content, usage=usage, **more))


def reads(*tokens: int) -> list[Reply]:
    return [
        said(count, THOUGHT, call(f"toolu_{name}", "read", where=f"{name}.txt"))
        for count, name in zip(tokens, "abcdef", strict=False)
    ]


def talks(*tokens: int) -> list[Reply]:
    """Responses with so much text that a summary is needed."""
    return [
        said(count, THOUGHT, text("z" * 3600), call(f"toolu_{name}", "peek", where=name))
        for count, name in zip(tokens, "abcdef", strict=False)
    ]


SUMMARY = said(2500, text("They looked for the key in a and b, and found nothing."))
NO = error(400, "invalid_request_error", text="no")
DONE = said(300, text("Done."))
WINDOW_FULL = said(2990, text("So the"), stop_reason="model_context_window_exceeded")
"""Synthetic: no recorded traffic has one."""


def _stopped(folder: Path) -> Outside:
    """Stop when the session's memory is requested."""
    abort = Abort()

    def on(event: Event) -> None:
        if isinstance(event, Result):
            abort.clear()

    def remembered() -> None:
        if not stopped:
            stopped.append(True)
            abort.stop()

    stopped: list[bool] = []
    return Outside(abort=abort, on=on, live={"memory": remembered})


async def _by_hand(world: World) -> Conversation:
    """A conversation that was compacted before it continues."""
    said_before = [
        {"role": role, "content": [text(f"{number} " + "z" * 3000)]}
        for number in range(3)
        for role in ("user", "assistant")
    ]
    talk = Conversation(messages=tuple(said_before), turns=3)
    assert await compact(talk, world=world, options=options()) is not None
    return talk


SCENARIOS: dict[str, Scenario] = {
    "trimmed": Scenario(
        "Old tool results become notes when the conversation has reached its threshold; the latest stay.",
        [*reads(100, 820, 1540), DONE],
        [read],
        options={"context": SMALL},
    ),
    "dropped": Scenario(
        "Where nothing can be trimmed and little is enough, the oldest groups go; the first prompt stays.",
        [
            *(
                said(100 + 75 * n, text("z" * 300), call(f"t{n}", "peek", where="here"))
                for n in range(24)
            ),
            said(2000, text("z" * 300), call("last", "peek", where="x")),
            DONE,
        ],
        [peek],
        options={"context": SMALL},
    ),
    "many-results-at-once": Scenario(
        "Where there is nothing to sum up yet, results go that the model has not seen; the last stays.",
        [
            said(300, *(call(f"toolu_{n}", "read", where=f"{n}.txt") for n in range(8))),
            DONE,
        ],
        [read],
        options={"context": SMALL},
    ),
    "summary-cut": Scenario(
        "A summary that was cut at its limit is asked for once more, shorter.",
        [
            *talks(1200, 2400),
            said(2500, text("They looked"), stop_reason="max_tokens"),
            SUMMARY,
            DONE,
        ],
        [peek],
        options={"context": SMALL},
    ),
    "paused-after-compaction": Scenario(
        "The provider has made the conversation shorter itself and pauses; its answer goes back, and it goes on.",
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
        "What the session remembers takes the place of a summary; in the replay nobody is asked for it.",
        [*talks(1200, 2400), DONE],
        [peek],
        options={"context": SMALL},
        outside=lambda folder: Outside(live={"memory": lambda: "They looked for the key."}),
    ),
    "summarized": Scenario(
        "A summary is asked for in a lane of its own; the conversation goes on from it and the last group, with "
        "the file that was read before.",
        [
            said(900, call("toolu_r", "skim", where="r.txt"), text("z" * 3600)),
            *talks(1800, 2900),
            SUMMARY,
            DONE,
        ],
        [skim, peek],
        options={"context": SMALL},
    ),
    "made-shorter-by-hand": Scenario(
        "Somebody has a conversation made shorter; the next run goes on from its summary and its last answer.",
        [SUMMARY, DONE],
        begin=_by_hand,
    ),
    "summary-too-long": Scenario(
        "A request for a summary that is too long itself drops its oldest groups and is made again.",
        [*talks(400, 800, 2400), TOO_LONG, TOO_LONG, SUMMARY, DONE],
        [peek],
        options={"context": SMALL},
    ),
    "made-shorter-once": Scenario(
        "A prompt that the provider refuses is made shorter and asked again, once in a conversation; the second "
        "time the run ends.",
        [*talks(300, 600, 900), TOO_LONG, SUMMARY, DONE, TOO_LONG],
        [peek],
        prompts=("Find the key", "And now?"),
    ),
    "full-window-made-shorter": Scenario(
        "An answer that fills the window is void; the conversation is made shorter and asked again.",
        [*talks(300, 600), WINDOW_FULL, SUMMARY, DONE],
        [peek],
    ),
    "compaction-given-up": Scenario(
        "After three failures in a row nothing is made shorter by itself any more.",
        [
            *talks(1200),
            *(reply for each in talks(0, 2400, 3600, 4800)[1:] for reply in (each, NO)),
            *talks(0, 0, 0, 0, 6000)[4:],
            DONE,
        ],
        [peek],
        options={"context": SMALL},
    ),
    "nudged": Scenario(
        "A model that stops with tokens left to spend is asked to go on, until that brings nothing any more.",
        [said(100, text(word)) for word in ("One", "Two", "Three", "Four")],
        options={"token_budget": 5000},
    ),
    "stopped-in-compaction": Scenario(
        "Stopped before the request for a summary has gone out; the next run of the conversation makes it.",
        [*talks(1200, 2400), SUMMARY, DONE],
        [peek],
        prompts=("Find the key", "Go on"),
        options={"context": SMALL},
        outside=_stopped,
    ),
}

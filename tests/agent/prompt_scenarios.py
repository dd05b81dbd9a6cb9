"""Scenarios of the loop: prompts, their cache, and thinking."""

from __future__ import annotations

from pathlib import Path

from agentobs.agent import Adaptive, Conversation, Section, SystemPrompt, tool
from agentobs.world import World
from tests.agent.provider import call, message, streamed, text
from tests.agent.scenario import Outside, Scenario

DONE = message(text("Done."))
THOUGHT = {"type": "thinking", "thinking": "Hm, well", "signature": "c2lnbmVkIQ=="}
HIDDEN = {"type": "redacted_thinking", "data": "aGlkZGVu"}


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(read_only=True, available=lambda: True, optional=True)
def search(words: str) -> str:
    """Search for words."""
    return f"no {words}"


def _unseen() -> str:
    """Write a section that only the current world may produce."""
    raise AssertionError("a section is asked of the world, never of the prompt")


def _sections(folder: Path) -> Outside:
    """Keep the tree constant for the conversation, while the clock advances."""
    del folder
    hours = iter(range(9, 20))
    return Outside(
        live={"sections": {"tree": lambda: "main.py", "clock": lambda: f"It is {next(hours)}:00."}}
    )


async def _latched(world: World) -> Conversation:
    """Return a conversation whose first request had no betas, and no thinking."""
    del world
    said = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": [text("Hello")]})
    held = {"betas": (), "cache": "5m", "thinking": None, "extra.speed": None}
    return Conversation(said, turns=1, latched={**held, "extra.thinking": None})


async def _idle(world: World) -> Conversation:
    """Return a conversation with thinking from long ago."""
    del world
    said = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [THOUGHT, HIDDEN, text("Hello")]},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": [THOUGHT]},
    )
    return Conversation(said, turns=2, thought_ns=0)


SCENARIOS: dict[str, Scenario] = {
    "cache-marks": Scenario(
        "Marks of the cache on the last tool, the last system block and the last message; tools keep their order.",
        [
            streamed(message(call("a", "look", where="box"), call("b", "search", words="tea"))),
            streamed(DONE),
            streamed(DONE),
        ],
        [search, look],
        prompts=("Hello", "Again"),
        options={"cache": "1h", "system": "You sell tea."},
    ),
    "system-prompt": Scenario(
        "A section that stays is asked for once a conversation, a volatile one each turn, behind what stays.",
        [streamed(message(call("a", "look", where="box"))), streamed(DONE), streamed(DONE)],
        [look],
        prompts=("Hello", "Again"),
        options={
            "cache": "5m",
            "system": SystemPrompt(
                default="You sell coffee.",
                agent=(
                    Section("who", "You sell tea."),
                    Section("clock", _unseen, volatile=True, reason="time passes"),
                    Section("tree", _unseen),
                ),
                append="Never lie.",
            ),
        },
        outside=_sections,
    ),
    "settings-held": Scenario(
        "What would flip the prefix in the middle of a conversation is told, and not taken.",
        [streamed(DONE)],
        options={
            "cache": "1h",
            "betas": ("a-1",),
            "thinking": Adaptive("high"),
            "extra": {"speed": "fast", "top_p": 1},
        },
        begin=_latched,
    ),
    "thinking": Scenario(
        "What was thought goes back as it came, signatures and what is hidden included.",
        [
            streamed(message(THOUGHT, HIDDEN, call("a", "look", where="box"))),
            streamed(message(THOUGHT, text("Done."))),
            streamed(DONE),
        ],
        [look],
        prompts=("Hello", "Again"),
        options={"thinking": Adaptive("low", "summarized")},
    ),
    "thinking-cleared": Scenario(
        "After an hour without an answer the thinking of earlier turns is gone for good.",
        [
            streamed(message(THOUGHT, call("a", "look", where="box"))),
            streamed(DONE),
        ],
        [look],
        options={"thinking": Adaptive()},
        begin=_idle,
    ),
}

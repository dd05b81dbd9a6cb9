"""Scenarios of the loop: prompts, their cache, and thinking."""

from __future__ import annotations

from pathlib import Path

from agentobs.agent import Adaptive, Conversation, Section, SystemPrompt, tool
from agentobs.world import World
from tests.agent.provider import call, message, streamed, text
from tests.agent.scenario import ExternalInput, Scenario

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


def _must_not_be_called() -> str:
    """Fail: the texts of sections are requested from the world, so this function must not be called."""
    raise AssertionError("sections are requested from the world, not from the prompt")


def _sections(folder: Path) -> ExternalInput:
    """Return an external input whose section `tree` is constant and whose section `clock` changes."""
    del folder
    hours = iter(range(9, 20))
    return ExternalInput(
        live={"sections": {"tree": lambda: "main.py", "clock": lambda: f"It is {next(hours)}:00."}}
    )


async def _latched(world: World) -> Conversation:
    """Return a conversation whose first request had no betas and no thinking."""
    del world
    history = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": [text("Hello")]})
    latched = {"betas": (), "cache": "5m", "thinking": None, "extra.speed": None}
    return Conversation(history, turns=1, latched={**latched, "extra.thinking": None})


async def _idle(world: World) -> Conversation:
    """Return a conversation whose last thinking was long ago."""
    del world
    history = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [THOUGHT, HIDDEN, text("Hello")]},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": [THOUGHT]},
    )
    return Conversation(history, turns=2, thought_ns=0)


SCENARIOS: dict[str, Scenario] = {
    "cache-marks": Scenario(
        "Cache breakpoints are on the last tool, the last system block and the last message; tools "
        "keep their order.",
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
        "A static section is requested once per conversation, a volatile section in each turn; "
        "volatile sections follow static ones.",
        [streamed(message(call("a", "look", where="box"))), streamed(DONE), streamed(DONE)],
        [look],
        prompts=("Hello", "Again"),
        options={
            "cache": "5m",
            "system": SystemPrompt(
                default="You sell coffee.",
                agent=(
                    Section("who", "You sell tea."),
                    Section("clock", _must_not_be_called, volatile=True, reason="time passes"),
                    Section("tree", _must_not_be_called),
                ),
                append="Never lie.",
            ),
        },
        external_input=_sections,
    ),
    "settings-held": Scenario(
        "A setting that would change the cached prefix in the middle of a conversation is reported,"
        " but not used.",
        [streamed(DONE)],
        options={
            "cache": "1h",
            "betas": ("a-1",),
            "thinking": Adaptive("high"),
            "extra": {"speed": "fast", "top_p": 1},
        },
        start_conversation=_latched,
    ),
    "thinking": Scenario(
        "Thinking is sent back unchanged, including signatures and redacted thinking.",
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
        "After an hour without a response, the thinking of earlier turns is removed permanently.",
        [
            streamed(message(THOUGHT, call("a", "look", where="box"))),
            streamed(DONE),
        ],
        [look],
        options={"thinking": Adaptive()},
        start_conversation=_idle,
    ),
}

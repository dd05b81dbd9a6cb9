"""Scenarios of the loop: hooks and automatic approval. In a replay no hook runs and no classifier is called."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentobs.agent import Permissions, tool
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.hooks import Command, Hook, PromptHook, table
from tests.agent.provider import Reply, call, message, streamed, text, whole
from tests.agent.scenario import Outside, Scenario

SMALL = "claude-small-1"
DONE = streamed(message(text("Done.")))
LIVE = [False]
"""Whether hooks may run; they must not in a replay."""


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def _calls(*calls: dict[str, Any]) -> Reply:
    return streamed(message(*calls, stop_reason="tool_use"))


def _said(answer: Any) -> Any:
    """Return a hook function with a fixed answer that must not run in a replay."""

    def function(payload: Any) -> Any:
        assert LIVE[0], "a hook ran in a replay"
        return answer(payload) if callable(answer) else answer

    return function


def _goes_on_once(payload: Any) -> Any:
    if payload["blocked_before"]:
        return None
    return {"outcome": "blocking", "reason": "Look into the bag, too."}


def _once_is_enough(payload: Any) -> Any:
    if payload["prompt"] == "Hello":
        return None
    return {"outcome": "blocking", "reason": "Once is enough."}


def _fails(payload: Any) -> Any:
    raise RuntimeError("ouch")


def _live(hooks: Sequence[Hook] = (), person: Any = None, **live: Any) -> Any:
    def outside(folder: Path) -> Outside:
        del folder
        LIVE[0] = True
        return Outside(person=person, live={"hooks": hooks, "hook_model": SMALL, **live})

    return outside


VETO = table(
    [
        Hook(
            "pre_tool_use",
            _said({"outcome": "blocking", "reason": "Not today."}),
            "write",
            name="guard",
        ),
        Hook("pre_tool_use", _said(_fails), name="crash"),
        Hook("pre_tool_use", Command("kill -9 $$"), name="killed"),
        Hook("permission_denied", _said({"context": "Ask for it tomorrow."}), name="denied"),
    ]
)
REWRITES = table(
    [
        Hook("session_start", _said({"context": "It is dark."}), name="start"),
        Hook("user_prompt_submit", _said({"context": "Be quick."}), name="prompt"),
        Hook("pre_tool_use", _said({"input": {"where": "box"}}), "look", name="first"),
        Hook("pre_tool_use", _said({"input": {"where": "bag"}}), "look", name="second"),
        Hook("post_tool_use", _said({"output": "a key"}), name="after", once=True),
        Hook("post_tool_use", _said(None), name="aside", background=True),
    ]
)
STOPS = table([Hook("stop", _said(_goes_on_once), name="more")])
JUDGED = table([Hook("pre_tool_use", PromptHook("Is it polite?"), name="judge")])
REFUSED = table([Hook("user_prompt_submit", _said(_once_is_enough), name="no")])


def _judged(**answer: Any) -> Reply:
    return whole(message(call("j", "answer", **answer), model=SMALL, stop_reason="tool_use"))


async def _answers_late(consent: Any) -> Any:
    """Answer only about the last call."""
    if consent.about["input"] != {"what": "e"}:
        await asyncio.Event().wait()
    return True


SCENARIOS: dict[str, Scenario] = {
    "hook-veto": Scenario(
        "One veto blocks a call; a hook that crashes, and one that is killed, hurt nobody.",
        [_calls(call("a", "look", where="box"), call("b", "write", what="x")), DONE],
        tools=[look, write],
        options={"hooks": VETO},
        outside=_live(VETO),
    ),
    "hook-rewriting": Scenario(
        "Hooks add to the prompt, change what a tool gets, and what the model sees of it.",
        [_calls(call("a", "look", where="x")), _calls(call("b", "look", where="y")), DONE],
        tools=[look],
        options={"hooks": REWRITES},
        outside=_live(REWRITES),
    ),
    "hook-stop": Scenario(
        "A hook that blocks the end makes the agent go on.",
        [streamed(message(text("Nothing there."))), _calls(call("a", "look", where="bag")), DONE],
        tools=[look],
        options={"hooks": STOPS},
        outside=_live(STOPS),
    ),
    "hook-refuses-prompt": Scenario(
        "A hook refuses the second prompt, and the model is not asked.",
        [DONE],
        prompts=("Hello", "Again"),
        options={"hooks": REFUSED},
        outside=_live(REFUSED),
    ),
    "hook-prompt": Scenario(
        "A small model judges a call; what it used counts in the replay, too.",
        [
            _calls(call("a", "write", what="x")),
            _judged(outcome="blocking", reason="It is rude."),
            DONE,
        ],
        tools=[write],
        options={"hooks": JUDGED},
        outside=_live(JUDGED),
    ),
    "classifier": Scenario(
        "A classifier is faster than the person; after three denials in a row the person alone is asked.",
        [
            _calls(call("a", "write", what="a")),
            _judged(behavior="allow", reason="Fine."),
            _calls(call("b", "write", what="b")),
            _judged(behavior="deny", reason="Rude."),
            _calls(call("c", "write", what="c")),
            _judged(behavior="deny", reason="Rude."),
            _calls(call("d", "write", what="d")),
            _judged(behavior="deny", reason="Rude."),
            _calls(call("e", "write", what="e")),
            DONE,
        ],
        tools=[write],
        options={"permissions": Permissions()},
        outside=_live(
            person=_answers_late,
            classifier=Classifier(SMALL),
        ),
    ),
}

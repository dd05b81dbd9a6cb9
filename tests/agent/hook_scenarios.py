"""Scenarios of the loop: hooks and automatic approval. A replay runs no hooks and does not call the classifier."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentobs.agent import Permissions, tool
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.hooks import Command, Hook, PromptHook, table
from tests.agent.provider import Reply, call, message, streamed, text, unstreamed
from tests.agent.scenario import ExternalInput, Scenario

SMALL = "claude-small-1"
DONE = streamed(message(text("Done.")))
LIVE = [False]
"""Whether hooks may run; in a replay they must not run."""


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


def _fixed_answer(answer: Any) -> Any:
    """Return a hook function that returns a fixed answer, and fails if it is called in a replay."""

    def function(payload: Any) -> Any:
        assert LIVE[0], "a hook ran in a replay"
        return answer(payload) if callable(answer) else answer

    return function


def _blocks_first_end(payload: Any) -> Any:
    if payload["blocked_before"]:
        return None
    return {"outcome": "blocking", "reason": "Look into the bag, too."}


def _rejects_second_prompt(payload: Any) -> Any:
    if payload["prompt"] == "Hello":
        return None
    return {"outcome": "blocking", "reason": "Once is enough."}


def _fails(payload: Any) -> Any:
    raise RuntimeError("ouch")


def _live(hooks: Sequence[Hook] = (), person: Any = None, **live: Any) -> Any:
    def external_input(folder: Path) -> ExternalInput:
        del folder
        LIVE[0] = True
        return ExternalInput(person=person, live={"hooks": hooks, "hook_model": SMALL, **live})

    return external_input


VETO = table(
    [
        Hook(
            "pre_tool_use",
            _fixed_answer({"outcome": "blocking", "reason": "Not today."}),
            "write",
            name="guard",
        ),
        Hook("pre_tool_use", _fixed_answer(_fails), name="crash"),
        Hook("pre_tool_use", Command("kill -9 $$"), name="killed"),
        Hook(
            "permission_denied", _fixed_answer({"context": "Ask for it tomorrow."}), name="denied"
        ),
    ]
)
REWRITES = table(
    [
        Hook("session_start", _fixed_answer({"context": "It is dark."}), name="start"),
        Hook("user_prompt_submit", _fixed_answer({"context": "Be quick."}), name="prompt"),
        Hook("pre_tool_use", _fixed_answer({"input": {"where": "box"}}), "look", name="first"),
        Hook("pre_tool_use", _fixed_answer({"input": {"where": "bag"}}), "look", name="second"),
        Hook("post_tool_use", _fixed_answer({"output": "a key"}), name="after", once=True),
        Hook("post_tool_use", _fixed_answer(None), name="aside", background=True),
    ]
)
STOPS = table([Hook("stop", _fixed_answer(_blocks_first_end), name="more")])
PROMPT_HOOKS = table([Hook("pre_tool_use", PromptHook("Is it polite?"), name="judge")])
REFUSED = table([Hook("user_prompt_submit", _fixed_answer(_rejects_second_prompt), name="no")])


def _classified(**answer: Any) -> Reply:
    return unstreamed(message(call("j", "answer", **answer), model=SMALL, stop_reason="tool_use"))


async def _approves_last_call(consent: Any) -> Any:
    """Approve only the last call, and never answer for the other calls."""
    if consent.about["input"] != {"what": "e"}:
        await asyncio.Event().wait()
    return True


SCENARIOS: dict[str, Scenario] = {
    "hook-veto": Scenario(
        "One veto blocks a call; a hook that crashes and a hook that is killed block nothing.",
        [_calls(call("a", "look", where="box"), call("b", "write", what="x")), DONE],
        tools=[look, write],
        options={"hooks": VETO},
        external_input=_live(VETO),
    ),
    "hook-rewriting": Scenario(
        "Hooks add context to the prompt, change the input of a tool, and change the result that "
        "the model gets.",
        [_calls(call("a", "look", where="x")), _calls(call("b", "look", where="y")), DONE],
        tools=[look],
        options={"hooks": REWRITES},
        external_input=_live(REWRITES),
    ),
    "hook-stop": Scenario(
        "A hook that prevents the end of the run makes the agent continue.",
        [streamed(message(text("Nothing there."))), _calls(call("a", "look", where="bag")), DONE],
        tools=[look],
        options={"hooks": STOPS},
        external_input=_live(STOPS),
    ),
    "hook-refuses-prompt": Scenario(
        "A hook rejects the second prompt, and no request is sent.",
        [DONE],
        prompts=("Hello", "Again"),
        options={"hooks": REFUSED},
        external_input=_live(REFUSED),
    ),
    "hook-prompt": Scenario(
        "A small model decides about a call; its usage also counts in the replay.",
        [
            _calls(call("a", "write", what="x")),
            _classified(outcome="blocking", reason="It is rude."),
            DONE,
        ],
        tools=[write],
        options={"hooks": PROMPT_HOOKS},
        external_input=_live(PROMPT_HOOKS),
    ),
    "classifier": Scenario(
        "A classifier is faster than the person; after three consecutive denials only the person is"
        " asked.",
        [
            _calls(call("a", "write", what="a")),
            _classified(behavior="allow", reason="Fine."),
            _calls(call("b", "write", what="b")),
            _classified(behavior="deny", reason="Rude."),
            _calls(call("c", "write", what="c")),
            _classified(behavior="deny", reason="Rude."),
            _calls(call("d", "write", what="d")),
            _classified(behavior="deny", reason="Rude."),
            _calls(call("e", "write", what="e")),
            DONE,
        ],
        tools=[write],
        options={"permissions": Permissions()},
        external_input=_live(
            person=_approves_last_call,
            classifier=Classifier(SMALL),
        ),
    ),
}

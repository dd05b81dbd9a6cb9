"""The hook reference, `docs/hooks.md`, matches the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentobs.agent import Conversation, Permissions, tool
from agentobs.agent.execution.hook_output import ANSWER_BYTES_MAX
from agentobs.agent.execution.hook_runner import AGENT_TIMEOUT_S, BACKGROUND_MAX, TIMEOUT_S
from agentobs.agent.execution.http_hooks import REDIRECTS_MAX
from agentobs.agent.hooks import ALLOWED_EFFECTS, EVENTS, Hook, table
from agentobs.agent.hooks.declarations import AGENT_TURNS_MAX
from agentobs.agent.hooks.hook_verdict import FIELDS, OUTCOMES
from agentobs.agent.lifecycle_hooks import STOP_BLOCKS_MAX
from agentobs.agent.permissions.consent import CONSECUTIVE_DENIALS_MAX, DENIALS_MAX
from tests.agent.provider import Provider, call, error, message, streamed, text

from .live_runs import run_agent

TEXT = (Path(__file__).parents[3] / "docs" / "hooks.md").read_text(encoding="utf-8")
ALWAYS = {"event", "hook", "turn", "session_id", "lane", "cwd"}


def rows(first: str) -> dict[str, list[str]]:
    """Return the rows of the table whose header starts with `first`, by their first cell."""
    (found,) = re.findall(rf"\| {first} \|.*\n\|[- |]+\n((?:\|.*\n)+)", TEXT)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]
    return {name: rest for name, *rest in cells}


def test_the_table_of_effects_matches_the_code() -> None:
    """The document lists every event with the effects that an answer may have."""
    effects = rows("event")
    assert tuple(effects) == EVENTS
    for event, (_, may) in effects.items():
        assert {each for each in may.split(", ") if each != "-"} == ALLOWED_EFFECTS[event]  # type: ignore[index]


def test_documented_fields_and_limits_match_the_code() -> None:
    """The document lists the answer fields, outcomes and limits of the code."""
    assert tuple(rows("field")) == FIELDS
    assert rows("field")["outcome"][0] == ", ".join(f"`{each}`" for each in OUTCOMES)
    for words in (
        f"at most {AGENT_TURNS_MAX} turns",
        f"At most {REDIRECTS_MAX} redirects",
        f"timeout is {TIMEOUT_S:g} seconds, and {AGENT_TIMEOUT_S:g} seconds for an `AgentHook`",
        f"at most {ANSWER_BYTES_MAX:,} bytes",
        f"at most {BACKGROUND_MAX} such hooks run",
        f"at most {STOP_BLOCKS_MAX} times",
        f"after {CONSECUTIVE_DENIALS_MAX} in a row or {DENIALS_MAX} in a conversation",
    ):
        assert words in TEXT


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    raise RuntimeError(what)


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return where


def test_the_table_of_payloads_matches_a_run() -> None:
    """The documented payload fields are those that a run passes to its hooks."""
    seen: dict[str, set[str]] = {}

    def note(payload: Any) -> None:
        seen.setdefault(payload["event"], set()).update(payload)

    hooks = table([Hook(event, note) for event in EVENTS])
    calls = message(
        call("a", "look", where="x"), call("b", "write", what="x"), call("c", "missing")
    )
    replies = [streamed(calls), streamed(message(text("Done."))), streamed(calls), error(400, "x")]
    with Provider(replies) as provider:
        for answer, prompts in ((True, ["Hello"]), (False, ["Again"])):
            run_agent(
                provider,
                tools=[look, write],
                hooks=hooks,
                permissions=Permissions(),
                person=lambda consent, answer=answer: answer,
                conversation=Conversation(),
                prompts=prompts,
            )
    listed = {
        event: set(payload.split(", ")) | ALWAYS for event, (payload, _) in rows("event").items()
    }
    assert set(seen) == {
        "session_start",
        "user_prompt_submit",
        "pre_request",
        "pre_tool_use",
        "post_tool_use",
        "post_tool_use_failure",
        "invalid_tool_call",
        "permission_request",
        "permission_denied",
        "notification",
        "stop",
        "stop_failure",
    }
    assert seen == {event: listed[event] for event in seen}


def test_the_documented_example_runs() -> None:
    """The example in the document runs and creates a table of two hooks."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    variables: dict[str, Any] = {}
    exec(compile(code, "docs/hooks.md", "exec"), variables)
    assert [hook.name for hook in variables["hooks"]] == ["guard", "settings:1"]

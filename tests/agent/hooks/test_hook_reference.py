"""The reference of hooks matches the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentobs.agent import Conversation, Permissions, tool
from agentobs.agent.execution.hook_output import ANSWER_BYTES_MAX
from agentobs.agent.execution.hook_runner import AGENT_SECONDS, BACKGROUND_MAX, SECONDS
from agentobs.agent.execution.http_hooks import REDIRECTS_MAX
from agentobs.agent.hooks import EVENTS, MAY, Hook, table
from agentobs.agent.hooks.declarations import AGENT_TURNS_MAX
from agentobs.agent.hooks.hook_verdict import FIELDS, OUTCOMES
from agentobs.agent.lifecycle_hooks import STOP_BLOCKS_MAX
from agentobs.agent.permissions.consent import DENIALS_IN_A_ROW_MAX, DENIALS_MAX
from tests.agent.provider import Provider, call, error, message, streamed, text

from .playing import played

TEXT = (Path(__file__).parents[3] / "docs" / "hooks.md").read_text(encoding="utf-8")
ALWAYS = {"event", "hook", "turn", "session_id", "lane", "cwd"}


def rows(first: str) -> dict[str, list[str]]:
    """The rows of the table whose header starts with `first`, by their first cell."""
    (found,) = re.findall(rf"\| {first} \|.*\n\|[- |]+\n((?:\|.*\n)+)", TEXT)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]
    return {name: rest for name, *rest in cells}


def test_what_an_answer_may() -> None:
    """Every event is listed, with the allowed effects of its answer."""
    told = rows("event")
    assert tuple(told) == EVENTS
    for event, (_, may) in told.items():
        assert {each for each in may.split(", ") if each != "-"} == MAY[event]  # type: ignore[index]


def test_fields_and_numbers() -> None:
    """The fields of an answer, the outcomes, and the limits are those of the code."""
    assert tuple(rows("field")) == FIELDS
    assert rows("field")["outcome"][0] == ", ".join(f"`{each}`" for each in OUTCOMES)
    for words in (
        f"at most {AGENT_TURNS_MAX} turns",
        f"At most {REDIRECTS_MAX} redirects",
        f"may take {SECONDS:g} seconds, an agent {AGENT_SECONDS:g}",
        f"at most {ANSWER_BYTES_MAX:,} bytes",
        f"at most {BACKGROUND_MAX} run",
        f"{STOP_BLOCKS_MAX} times at most",
        f"after {DENIALS_IN_A_ROW_MAX} in a row or {DENIALS_MAX} in a conversation",
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


def test_what_hooks_are_told() -> None:
    """The payloads that a run passes to its hooks match the table."""
    seen: dict[str, set[str]] = {}

    def note(payload: Any) -> None:
        seen.setdefault(payload["event"], set()).update(payload)

    hooks = table([Hook(event, note) for event in EVENTS])
    calls = message(call("a", "look", where="x"), call("b", "write", what="x"))
    replies = [streamed(calls), streamed(message(text("Done."))), streamed(calls), error(400, "x")]
    with Provider(replies) as provider:
        for answer, prompts in ((True, ["Hello"]), (False, ["Again"])):
            played(
                provider,
                tools=[look, write],
                hooks=hooks,
                permissions=Permissions(),
                person=lambda consent, answer=answer: answer,
                talk=Conversation(),
                prompts=prompts,
            )
    listed = {
        event: set(payload.split(", ")) | ALWAYS for event, (payload, _) in rows("event").items()
    }
    assert set(seen) == {
        "session_start",
        "user_prompt_submit",
        "pre_tool_use",
        "post_tool_use",
        "post_tool_use_failure",
        "permission_request",
        "permission_denied",
        "notification",
        "stop",
        "stop_failure",
    }
    assert seen == {event: listed[event] for event in seen}


def test_the_example_runs() -> None:
    """It makes a table of two hooks."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    variables: dict[str, Any] = {}
    exec(compile(code, "docs/hooks.md", "exec"), variables)
    assert [hook.name for hook in variables["hooks"]] == ["guard", "settings:1"]

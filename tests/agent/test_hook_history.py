"""If hooks changed a session, or agents outlived it, the resumed conversation is still the conversation that the loop
kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs import wiring
from agentobs.agent import Abort, Conversation, finish, live_world, resumed, run, sub_agents, tool
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.hooks import Hook, table
from agentobs.agent.permissions import Permissions
from agentobs.agent.sessions.hook_history import NOT_INSPECTED
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.session import flush, start_recorder
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import WorldQuestion
from replay import Replayer, load
from replay.freeze.conversion import freeze
from tests import queries
from tests.marks import mark_all_but_first
from tests.replay.nested_agents import RandomProvider, serve_random_provider

from .agent_runs import in_loop, options
from .provider import Provider, Reply, call, error, message, streamed, text, unstreamed

ROOT = Path(__file__).parents[2]
DONE = streamed(message(text("Done.")))
SMALL = "claude-small-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the recording home that this process uses during one test."""
    path = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_HOME", str(path))
    agentobs.stop_recorder()
    start_recorder(str(path))
    yield path
    assert agentobs.stop_recorder()


@tool
def put(what: str) -> str:
    """Put something."""
    return f"private {what}"


@tool(read_only=True, result_chars_max=300)
def look(where: str) -> str:
    """Look somewhere."""
    return f"private {where}"


CALLS = streamed(
    message(call("a", "look", where="x"), call("b", "look", where="y"), call("c", "put", what="z"))
)


def masked_result(payload: Any) -> dict[str, Any]:
    return {"output": "masked", "context": f"policy of {payload['tool_use_id']}"}


async def masked_in_other_order(payload: Any) -> dict[str, Any]:
    """Return a masked result; the result of the first call comes last."""
    if payload["tool_use_id"] == "a":
        await asyncio.sleep(0.05)
    return masked_result(payload)


HOOKS: dict[str, list[Hook]] = {
    "masked": [Hook("post_tool_use", masked_result, name="mask")],
    "slow": [Hook("post_tool_use", masked_in_other_order, name="mask")],
    "long": [Hook("post_tool_use", lambda payload: {"output": "m\n" * 400}, name="mask")],
    "blocks": [Hook("post_tool_use", lambda payload: {"output": "no", "outcome": "blocking"})],
    "objects": [
        Hook(
            "post_tool_use", lambda payload: {"outcome": "blocking", "reason": "Not so."}, name="no"
        ),
        Hook("post_tool_use", lambda payload: {"output": ["one", {"two": 2}]}, name="odd"),
        Hook("post_tool_use", lambda payload: {"context": "Never."}, background=True, name="late"),
    ],
    "denied": [
        Hook("pre_tool_use", lambda payload: {"decision": "deny", "reason": "No."}, when="put"),
        Hook(
            "pre_tool_use",
            lambda payload: {"input": {"where": "else"}, "context": "C"},
            when="look",
        ),
        Hook("permission_denied", lambda payload: {"context": "It was denied."}),
    ],
    "prompted": [
        Hook("session_start", lambda payload: {"context": f"begins by {payload['source']}"}),
        Hook("user_prompt_submit", lambda payload: {"context": f"said {payload['prompt']}"}),
        Hook("post_tool_use", masked_result, name="mask"),
    ],
    "stopped": [Hook("post_tool_use", lambda payload: {"stop": True, "context": "over"})],
}


def kept_and_resumed_conversation(
    replies: list[Reply],
    hooks: tuple[Hook, ...],
    *,
    prompts: tuple[str, ...] = ("Go",),
    abort: Abort | None = None,
    **changes: Any,
) -> tuple[Conversation, Conversation]:
    """Run a session; return the conversation that the loop kept, and the conversation that is resumed from the
    recording.
    """

    async def main(provider: Provider) -> tuple[Conversation, Conversation]:
        async with provider.client() as client:
            agentobs.record(client)
            live: Any = {"hooks": hooks, "abort": abort, "load": wiring.load_conversation}
            world = live_world(client, [put, look], **live, **changes.pop("live", {}))
            run_options, conversation = options(hooks=hooks, **changes), Conversation()
            with agentobs.session("s") as session:
                for prompt in prompts:
                    running = run(
                        prompt,
                        world=world,
                        options=run_options,
                        tools=[put, look],
                        conversation=conversation,
                    )
                    async for _ in running:
                        pass
            if abort is not None:
                abort.clear()
            return conversation, await resumed(world, session.session_id)

    with Provider(replies) as provider:
        return in_loop(main(provider))


@pytest.mark.parametrize("name", mark_all_but_first(HOOKS, pytest.mark.slow))
def test_results_changed_by_hooks_are_kept(name: str, home: Path) -> None:
    """If hooks changed results in the last turn of a session, the resumed conversation has the changed results in the
    same order.
    """
    conversation, resumed_conversation = kept_and_resumed_conversation(
        [CALLS], table(HOOKS[name]), max_turns=1
    )
    assert list(resumed_conversation.messages) == list(conversation.messages)
    assert (resumed_conversation.turns, resumed_conversation.tool_turns) == (
        conversation.turns,
        conversation.tool_turns,
    )
    if any(hook.name == "mask" for hook in HOOKS[name]):
        assert "private" not in str(resumed_conversation.messages)


def test_changes_before_an_abort_are_kept(home: Path) -> None:
    """If a hook stops the run after a call, the resumed conversation has the changes that hooks made before."""
    abort = Abort()

    def stop_run(payload: Any) -> dict[str, Any]:
        if payload["tool_use_id"] == "c":
            abort.stop()
        return masked_result(payload)

    hooks = table([Hook("post_tool_use", stop_run, name="mask")])
    conversation, resumed_conversation = kept_and_resumed_conversation([CALLS], hooks, abort=abort)
    assert list(resumed_conversation.messages) == list(conversation.messages)
    assert "masked" in str(resumed_conversation.messages[-1])


@pytest.mark.slow
def test_context_of_an_unanswered_prompt_is_kept(home: Path) -> None:
    """If the provider rejected a prompt, the prompt is resumed with the context that hooks added."""
    replies = [CALLS, DONE, error(400, "invalid_request_error")]
    hooks = table(HOOKS["prompted"])
    conversation, resumed_conversation = kept_and_resumed_conversation(
        replies, hooks, prompts=("Go", "On")
    )
    kept = len(conversation.messages)
    assert list(resumed_conversation.messages[:kept]) == list(conversation.messages)
    (unanswered,) = resumed_conversation.messages[kept:]
    assert [block["text"] for block in unanswered["content"]] == ["On", "said On"]


def test_an_unsent_objection_is_kept(home: Path) -> None:
    """If a hook objected to the end of a run, and the run was stopped before the objection was sent, the objection is
    resumed.
    """
    abort = Abort()

    def object_to_end(payload: Any) -> dict[str, Any]:
        abort.stop()
        return {"outcome": "blocking", "reason": "Run the tests."}

    hooks = table([Hook("stop", object_to_end, name="tests")])
    conversation, resumed_conversation = kept_and_resumed_conversation([DONE], hooks, abort=abort)
    assert list(resumed_conversation.messages) == list(conversation.messages)
    if len(conversation.messages) > 2:
        assert conversation.messages[-1]["content"] == [text("Run the tests.")]


@pytest.mark.slow
def test_process_killed_before_a_hook_processed_a_result(tmp_path: Path) -> None:
    """If the process was killed before a masking hook answered, the resumed conversation hides the result that the hook
    would have changed.
    """
    path, environment = tmp_path / "home", {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["AGENTOBS_HOME"] = str(path)
    with Provider([CALLS]) as provider:
        command = [sys.executable, "-m", "tests.agent.test_hook_history", provider.base_url]
        ended = subprocess.run(
            command, env=environment, capture_output=True, timeout=60, check=False, cwd=tmp_path
        )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    [(session_id,)] = queries.query("SELECT session_id FROM sessions", home=path)
    question = {"session_id": session_id, "relation": "resume"}
    messages = wiring.load_conversation(question, home=path)["messages"]
    contents = [block.get("content", block.get("text")) for block in messages[-1]["content"]]
    assert contents[:2] == ["masked", NOT_INSPECTED.content]
    assert "private" not in str(messages)


async def run_killed_agent(url: str) -> None:
    """Run an agent with a hook that kills the process at the second call."""

    answered = asyncio.Event()

    async def mask_or_kill(payload: Any) -> dict[str, Any]:
        if payload["tool_use_id"] == "a":
            return masked_result(payload)
        await answered.wait()
        recorder = start_recorder()
        assert recorder is not None
        assert recorder.flush(20)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    hooks = table([Hook("post_tool_use", mask_or_kill, name="mask")])
    client = agentobs.record(AsyncAnthropic(api_key="made-up", base_url=url))
    with agentobs.session("killed"):
        live = live_world(client, [put, look], hooks=hooks)

        async def ask(question: WorldQuestion) -> Any:
            answer = await live.ask(question)
            answered.set()  # the answer is recorded before any other task can continue
            return answer

        world = dataclasses.replace(live, ask=ask)
        async for _ in run("Go", world=world, options=options(hooks=hooks), tools=[put, look]):
            pass


@pytest.mark.slow
def test_a_once_hook_runs_once_in_resumed_sessions(home: Path) -> None:
    """A `once` hook that ran in the earlier session does not run again in a resumed session; denials by the classifier
    still count.
    """
    ran: list[str] = []
    hooks = table(
        [
            Hook("session_start", lambda payload: ran.append("once"), once=True, name="once"),
            Hook("session_start", lambda payload: ran.append("always"), name="always"),
        ]
    )
    denies = call("j", "answer", behavior="deny", reason="No.")
    judged = unstreamed(message(denies, model=SMALL, stop_reason="tool_use"))
    put_reply = streamed(message(call("a", "put", what="x"), call("b", "put", what="y")))

    async def main(provider: Provider) -> Conversation:
        async with provider.client() as client:
            agentobs.record(client)
            live: Any = {"hooks": hooks, "load": wiring.load_conversation}
            world = live_world(client, [put], classifier=Classifier(SMALL), **live)
            run_options, conversation = (
                options(hooks=hooks, permissions=Permissions()),
                Conversation(),
            )
            first = None
            for _ in range(3):
                with agentobs.session("s", resume=first) as session:
                    conversation = await resumed(world, first) if first else conversation
                    running = run(
                        "Go",
                        world=world,
                        options=run_options,
                        tools=[put],
                        conversation=conversation,
                    )
                    async for _ in running:
                        pass
                first = session.session_id
            return await resumed(world, str(first))

    with Provider([put_reply, judged, judged, DONE, DONE, DONE]) as provider:
        conversation = in_loop(main(provider))
    assert sorted(ran) == ["always", "always", "always", "once"]
    assert "once" in conversation.hooks_done
    assert (conversation.denials.in_a_row, conversation.denials.in_all) == (2, 2)


# Background agents that outlive their session.


class Scouts(RandomProvider):
    """A scripted provider: the agent starts a scout in the background and ends, and the scout calls its tool twice."""

    def _message(self, request: Any) -> Any:
        count = sum(each["role"] == "assistant" for each in request["messages"])
        if "scout" not in str(request["messages"][0]):
            background_call = call(
                "b", "agent", agent="scout", prompt="scout", run_in_background=True
            )
            return message(background_call) if count == 0 else message(text("One."))
        return message(call(f"l{count}", "dig", where="a")) if count < 2 else message(text("End."))


def digging_tool(may_continue: asyncio.Event) -> Any:
    @tool(read_only=True)
    async def dig(where: str) -> str:
        """Dig when it is allowed to."""
        await may_continue.wait()
        return f"nothing in {where}"

    return dig


async def run_with_outliving_agent(
    url: str | None, inspect: Callable[[Any, str], Any] | None = None
) -> tuple[Conversation, str, Any]:
    """Run an agent whose scout continues after the session; return the conversation, the session ID and two
    inspections.

    `inspect` is called at the end of the session, and again after the scout has ended.
    """
    may_continue = asyncio.Event()
    scouts = sub_agents([AgentDefinition("scout", "Looks.")])
    async with AsyncAnthropic(api_key="made-up", base_url=url, max_retries=0) as client:
        agentobs.record(client)
        tools, conversation = [scouts, digging_tool(may_continue)], Conversation()
        world = live_world(client, tools, load=wiring.load_conversation)
        with agentobs.session("s") as session:
            running = run(
                "Go", world=world, options=options(), tools=tools, conversation=conversation
            )
            async for _ in running:
                pass
        before_end = await inspect(world, session.session_id) if inspect else None
        conversation.children = {
            name: each.conversation for name, each in conversation.background.items()
        }
        may_continue.set()
        await finish(conversation, cancel=False)
        after_end = await inspect(world, session.session_id) if inspect else None
    return conversation, session.session_id, (before_end, after_end)


@pytest.mark.slow
def test_an_agent_that_outlives_its_session(home: Path) -> None:
    """A session can be resumed while a background agent still runs; after the agent has ended, it is resumed
    completely.
    """
    with serve_random_provider(Scouts(1, 1)) as url:
        conversation, _, (resumed_early, resumed_late) = in_loop(
            run_with_outliving_agent(url, resumed)
        )
    assert (
        list(resumed_early.messages[:4])
        == list(resumed_late.messages[:4])
        == list(conversation.messages[:4])
    )
    assert list(resumed_late.children["b"].messages) == list(conversation.children["b"].messages)
    assert resumed_late.children["b"].messages[-1]["content"] == [text("End.")]
    assert resumed_late.meter.total().calls == 5


def test_a_session_with_an_agent_that_outlived_it_replays(home: Path, tmp_path: Path) -> None:
    """A fixture contains the requests that a background agent sent after its session ended, and the replay takes the
    same path.
    """
    with serve_random_provider(Scouts(1, 1)) as url:
        conversation, session_id, _ = in_loop(run_with_outliving_agent(url))
    assert flush()
    found = existing_home(home)
    recording = read_session(found, session_id, segment_ids(found))
    written = freeze(recording, tmp_path / "fixture", {}).fixture
    replayed: list[Conversation] = []

    async def replay_agent() -> None:
        replayed.append((await run_with_outliving_agent(None))[0])

    with Replayer(load(written)) as opened:
        opened.run(replay_agent)
    [child] = replayed[0].children.values()
    assert list(child.messages) == list(conversation.children["b"].messages)
    assert list(replayed[0].messages) == list(conversation.messages)


if __name__ == "__main__":
    asyncio.run(run_killed_agent(sys.argv[1]))

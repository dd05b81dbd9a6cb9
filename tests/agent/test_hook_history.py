"""Resume after hooks, and after agents that outlived their session: the result equals the loop's conversation."""

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
from agentobs.agent.sessions.hook_history import UNSEEN
from agentobs.agent.tools.agent_definitions import Agent
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.session import flush, start_recorder
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import WorldQuestion
from replay import Replayer, load
from replay.freeze.conversion import freeze
from tests.replay.crowd import Inventor, inventing

from .provider import Provider, Reply, call, error, message, streamed, text, whole
from .scene import in_loop, options

ROOT = Path(__file__).parents[2]
DONE = streamed(message(text("Done.")))
SMALL = "claude-small-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The recording home of this process, for one test."""
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


def quickly(told: Any) -> dict[str, Any]:
    return {"output": "masked", "context": f"policy of {told['tool_use_id']}"}


async def slowly_first(told: Any) -> dict[str, Any]:
    """Answer for the first call after the others, however long they take."""
    if told["tool_use_id"] == "a":
        await asyncio.sleep(0.05)
    return quickly(told)


HOOKS: dict[str, list[Hook]] = {
    "masked": [Hook("post_tool_use", quickly, name="mask")],
    "slow": [Hook("post_tool_use", slowly_first, name="mask")],
    "long": [Hook("post_tool_use", lambda told: {"output": "m\n" * 400}, name="mask")],
    "blocks": [Hook("post_tool_use", lambda told: {"output": "no", "outcome": "blocking"})],
    "objects": [
        Hook("post_tool_use", lambda told: {"outcome": "blocking", "reason": "Not so."}, name="no"),
        Hook("post_tool_use", lambda told: {"output": ["one", {"two": 2}]}, name="odd"),
        Hook("post_tool_use", lambda told: {"context": "Never."}, background=True, name="late"),
    ],
    "denied": [
        Hook("pre_tool_use", lambda told: {"decision": "deny", "reason": "No."}, when="put"),
        Hook(
            "pre_tool_use", lambda told: {"input": {"where": "else"}, "context": "C"}, when="look"
        ),
        Hook("permission_denied", lambda told: {"context": "It was denied."}),
    ],
    "prompted": [
        Hook("session_start", lambda told: {"context": f"begins by {told['source']}"}),
        Hook("user_prompt_submit", lambda told: {"context": f"said {told['prompt']}"}),
        Hook("post_tool_use", quickly, name="mask"),
    ],
    "stopped": [Hook("post_tool_use", lambda told: {"stop": True, "context": "over"})],
}


def kept_and_resumed(
    replies: list[Reply],
    hooks: tuple[Hook, ...],
    *,
    prompts: tuple[str, ...] = ("Go",),
    abort: Abort | None = None,
    **changes: Any,
) -> tuple[Conversation, Conversation]:
    """Play a session; return the conversation as kept, and as resumed."""

    async def main(provider: Provider) -> tuple[Conversation, Conversation]:
        async with provider.client() as client:
            agentobs.record(client)
            given: Any = {"hooks": hooks, "abort": abort, "load": wiring.load_conversation}
            world = live_world(client, [put, look], **given, **changes.pop("live", {}))
            asked, talk = options(hooks=hooks, **changes), Conversation()
            with agentobs.session("s") as session:
                for prompt in prompts:
                    running = run(
                        prompt, world=world, options=asked, tools=[put, look], conversation=talk
                    )
                    async for _ in running:
                        pass
            if abort is not None:
                abort.clear()
            return talk, await resumed(world, session.session_id)

    with Provider(replies) as provider:
        return in_loop(main(provider))


@pytest.mark.parametrize("name", HOOKS)
def test_what_hooks_made_of_results_stays(name: str, home: Path) -> None:
    """After a session whose turns were used up: exactly what the model was to see, in the same order."""
    talk, again = kept_and_resumed([CALLS], table(HOOKS[name]), max_turns=1)
    assert list(again.messages) == list(talk.messages)
    assert (again.turns, again.tool_turns) == (talk.turns, talk.tool_turns)
    if any(hook.name == "mask" for hook in HOOKS[name]):
        assert "private" not in str(again.messages)


def test_after_an_abort_among_hooks(home: Path) -> None:
    """The run is stopped by the hook after a call: earlier changes persist."""
    abort = Abort()

    def stops(told: Any) -> dict[str, Any]:
        if told["tool_use_id"] == "c":
            abort.stop()
        return quickly(told)

    hooks = table([Hook("post_tool_use", stops, name="mask")])
    talk, again = kept_and_resumed([CALLS], hooks, abort=abort)
    assert list(again.messages) == list(talk.messages)
    assert "masked" in str(again.messages[-1])


def test_what_hooks_add_to_a_prompt_that_was_never_answered(home: Path) -> None:
    """The refused prompt is restored with the hooks' context."""
    replies = [CALLS, DONE, error(400, "invalid_request_error")]
    hooks = table(HOOKS["prompted"])
    talk, again = kept_and_resumed(replies, hooks, prompts=("Go", "On"))
    kept = len(talk.messages)
    assert list(again.messages[:kept]) == list(talk.messages)
    (unanswered,) = again.messages[kept:]
    assert [block["text"] for block in unanswered["content"]] == ["On", "said On"]


def test_why_an_agent_may_not_end_yet(home: Path) -> None:
    """A hook objected to the end, and the run was stopped before the model was told."""
    abort = Abort()

    def objects(told: Any) -> dict[str, Any]:
        abort.stop()
        return {"outcome": "blocking", "reason": "Run the tests."}

    hooks = table([Hook("stop", objects, name="tests")])
    talk, again = kept_and_resumed([DONE], hooks, abort=abort)
    assert list(again.messages) == list(talk.messages)
    if len(talk.messages) > 2:
        assert talk.messages[-1]["content"] == [text("Run the tests.")]


def test_killed_before_a_hook_had_seen_a_result(tmp_path: Path) -> None:
    """If a masking hook had not run or answered, the result is hidden, because it would have been changed."""
    path, environment = tmp_path / "home", {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["AGENTOBS_HOME"] = str(path)
    with Provider([CALLS]) as provider:
        command = [sys.executable, "-m", "tests.agent.test_resuming_hooked", provider.base_url]
        ended = subprocess.run(
            command, env=environment, capture_output=True, timeout=60, check=False, cwd=tmp_path
        )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    [(session_id,)] = agentobs.query("SELECT session_id FROM sessions", home=path)
    asked = {"session_id": session_id, "relation": "resume"}
    messages = wiring.load_conversation(asked, home=path)["messages"]
    told = [block.get("content", block.get("text")) for block in messages[-1]["content"]]
    assert told[:2] == ["masked", UNSEEN.content]
    assert "private" not in str(messages)


async def killed(url: str) -> None:
    """Run an agent whose hook kills the process at the second call."""

    answered = asyncio.Event()

    async def masks(told: Any) -> dict[str, Any]:
        if told["tool_use_id"] == "a":
            return quickly(told)
        await answered.wait()
        recorder = start_recorder()
        assert recorder is not None
        assert recorder.flush(20)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    hooks = table([Hook("post_tool_use", masks, name="mask")])
    client = agentobs.record(AsyncAnthropic(api_key="made-up", base_url=url))
    with agentobs.session("killed"):
        live = live_world(client, [put, look], hooks=hooks)

        async def ask(question: WorldQuestion) -> Any:
            answer = await live.ask(question)
            answered.set()  # it is recorded before any other task can continue
            return answer

        world = dataclasses.replace(live, ask=ask)
        async for _ in run("Go", world=world, options=options(hooks=hooks), tools=[put, look]):
            pass


def test_once_is_once_in_a_conversation(home: Path) -> None:
    """A hook that ran in the earlier session does not run again, and the classifier's denials carry over."""
    ran: list[str] = []
    hooks = table(
        [
            Hook("session_start", lambda told: ran.append("once"), once=True, name="once"),
            Hook("session_start", lambda told: ran.append("always"), name="always"),
        ]
    )
    denies = call("j", "answer", behavior="deny", reason="No.")
    judged = whole(message(denies, model=SMALL, stop_reason="tool_use"))
    puts = streamed(message(call("a", "put", what="x"), call("b", "put", what="y")))

    async def main(provider: Provider) -> Conversation:
        async with provider.client() as client:
            agentobs.record(client)
            given: Any = {"hooks": hooks, "load": wiring.load_conversation}
            world = live_world(client, [put], classifier=Classifier(SMALL), **given)
            asked, talk = options(hooks=hooks, permissions=Permissions()), Conversation()
            first = None
            for _ in range(3):
                with agentobs.session("s", resume=first) as session:
                    talk = await resumed(world, first) if first else talk
                    running = run("Go", world=world, options=asked, tools=[put], conversation=talk)
                    async for _ in running:
                        pass
                first = session.session_id
            return await resumed(world, str(first))

    with Provider([puts, judged, judged, DONE, DONE, DONE]) as provider:
        talk = in_loop(main(provider))
    assert sorted(ran) == ["always", "always", "always", "once"]
    assert "once" in talk.hooks_done
    assert (talk.denials.in_a_row, talk.denials.in_all) == (2, 2)


# Background agents that outlive their session.


class Scouts(Inventor):
    """Starts a scout in the background and ends; the scout looks twice."""

    def _message(self, asked: Any) -> Any:
        count = sum(each["role"] == "assistant" for each in asked["messages"])
        if "scout" not in str(asked["messages"][0]):
            begun = call("b", "agent", agent="scout", prompt="scout", run_in_background=True)
            return message(begun) if count == 0 else message(text("One."))
        return message(call(f"l{count}", "dig", where="a")) if count < 2 else message(text("End."))


def digging(let_go: asyncio.Event) -> Any:
    @tool(read_only=True)
    async def dig(where: str) -> str:
        """Dig, once it is let."""
        await let_go.wait()
        return f"nothing in {where}"

    return dig


async def outlived(
    url: str | None, between: Callable[[Any, str], Any] | None = None
) -> tuple[Conversation, str, Any]:
    """Run an agent whose scout continues after the session; `between` runs before that."""
    let_go = asyncio.Event()
    scouts = sub_agents([Agent("scout", "Looks.")])
    async with AsyncAnthropic(api_key="made-up", base_url=url, max_retries=0) as client:
        agentobs.record(client)
        tools, talk = [scouts, digging(let_go)], Conversation()
        world = live_world(client, tools, load=wiring.load_conversation)
        with agentobs.session("s") as session:
            running = run("Go", world=world, options=options(), tools=tools, conversation=talk)
            async for _ in running:
                pass
        found = await between(world, session.session_id) if between else None
        talk.children = {name: each.talk for name, each in talk.background.items()}
        let_go.set()
        await finish(talk, cancel=False)
        again = await between(world, session.session_id) if between else None
    return talk, session.session_id, (found, again)


def test_an_agent_that_outlives_its_session(home: Path) -> None:
    """It can be resumed while the agent runs and after it has ended; then with everything it did."""
    with inventing(Scouts(1, 1)) as url:
        talk, _, (early, late) = in_loop(outlived(url, resumed))
    assert list(early.messages[:4]) == list(late.messages[:4]) == list(talk.messages[:4])
    assert list(late.children["b"].messages) == list(talk.children["b"].messages)
    assert late.children["b"].messages[-1]["content"] == [text("End.")]
    assert late.meter.total().calls == 5


def test_a_session_that_its_agent_outlived_replays(home: Path, tmp_path: Path) -> None:
    """The agent's requests after the end are in the fixture, and the replay takes the same path."""
    with inventing(Scouts(1, 1)) as url:
        talk, session_id, _ = in_loop(outlived(url))
    assert flush()
    found = existing_home(home)
    recording = read_session(found, session_id, segment_ids(found))
    written = freeze(recording, tmp_path / "fixture", {}).fixture
    replayed: list[Conversation] = []

    async def again() -> None:
        replayed.append((await outlived(None))[0])

    with Replayer(load(written)) as opened:
        opened.run(again)
    [child] = replayed[0].children.values()
    assert list(child.messages) == list(talk.children["b"].messages)
    assert list(replayed[0].messages) == list(talk.messages)


if __name__ == "__main__":
    asyncio.run(killed(sys.argv[1]))

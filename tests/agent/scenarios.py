"""Scenarios of the loop: each has an agent, the responses of its provider, and external input.

Each scenario was recorded once into `fixtures/loop/NAME`, together with the resulting events. Tests replay the same
agents without external input. To record scenarios again, run `python -m tests.agent.scenarios`, optionally with the
names of scenarios.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

import agentobs
from agentobs.agent import (
    Abort,
    BackgroundResult,
    Budget,
    Consent,
    Conversation,
    Event,
    HookRan,
    Inbox,
    Message,
    Permission,
    Permissions,
    Reply,
    RequestStart,
    Result,
    Retry,
    Rule,
    SubAgent,
    TextDelta,
    Tool,
    ToolDispatch,
    ToolDone,
    live_world,
    run,
    tool,
)
from agentobs.agent.permissions import SOURCES
from agentobs.records.canonical_json import canonical
from tests.agent.agent_runs import options
from tests.agent.context_scenarios import SCENARIOS as OF_CONTEXT
from tests.agent.hook_scenarios import SCENARIOS as OF_HOOKS
from tests.agent.prompt_scenarios import SCENARIOS as OF_PROMPT
from tests.agent.provider import (
    Provider,
    call,
    cut_after,
    error,
    message,
    streamed,
    text,
    unstreamed,
)
from tests.agent.recovery_scenarios import SCENARIOS as OF_RECOVERY
from tests.agent.scenario import ExternalInput, Scenario
from tests.agent.session_scenarios import SCENARIOS as OF_SESSIONS
from tests.agent.sub_agent_scenarios import SCENARIOS as OF_SUB_AGENTS

FIXTURES = Path(__file__).parents[2] / "fixtures" / "loop"
PRICED = "claude-sonnet-4-6"
DONE = message(text("Done."))


async def play(
    name: str, client: Any, external_input: ExternalInput, tools: Sequence[Tool]
) -> AsyncGenerator[Event, None]:
    """Run the agent of a scenario and yield its events."""
    scenario = SCENARIOS[name]
    world = live_world(
        client,
        tools,
        person=external_input.person,
        inbox=external_input.inbox,
        abort=external_input.abort,
        roots=external_input.roots,
        keep=external_input.keep,
        spent_today=external_input.spent_today,
        **external_input.live,
    )
    conversation = (
        await scenario.start_conversation(world) if scenario.start_conversation else Conversation()
    )
    external_input.conversation = conversation
    for prompt in scenario.prompts:
        events = run(
            prompt,
            world=world,
            options=options(**scenario.options),
            tools=tools,
            conversation=conversation,
        )
        async for event in events:
            external_input.on(event)
            yield event


def in_order(events: Sequence[Event]) -> list[str]:
    """Return events as lines in an order that does not depend on concurrency.

    The events of each sub-agent precede the result of the call that started the sub-agent.
    """
    found: list[str] = []
    sub_agent_events: dict[str, list[SubAgent]] = {}
    for event in events:
        if isinstance(event, SubAgent):
            sub_agent_events.setdefault(event.lane.split("/")[1], []).append(event)
            continue
        if isinstance(event, ToolDone | BackgroundResult):
            agent_id = (
                event.agent_id
                if isinstance(event, BackgroundResult)
                else event.question.tool_use_id
            )
            found += map(
                line, sorted(sub_agent_events.pop(agent_id, ()), key=lambda each: each.lane)
            )
        found.append(line(event))
    return found


def line(event: Event) -> str:
    """Return an event as one line: its type, and the fields that are identical in every replay, without times."""
    match event:
        case RequestStart():
            what: Any = [event.turn, event.attempt, event.transition, event.source, event.model]
        case Message():
            what = [event.turn, event.message["content"]]
        case Permission():
            decision = event.decision
            what = [
                event.question.tool_use_id,
                decision.behavior,
                decision.reason_type,
                decision.source,
                decision.resolver,
                decision.reason,
            ]
        case ToolDispatch():
            what = [event.question.tool_use_id, event.question.name, event.question.input]
        case ToolDone():
            answer = event.answer
            what = [event.question.tool_use_id, answer.outcome, answer.is_error, answer.content]
        case Retry():
            what = [event.turn, event.attempt, event.error, event.status]
        case SubAgent():
            what = [event.agent_id, event.agent, event.lane, event.depth, line(event.event)]
        case HookRan():
            what = [
                event.turn,
                event.event,
                event.hook,
                event.outcome,
                event.tool_use_id,
                event.reason,
            ]
        case Result():
            what = [
                event.subtype,
                event.terminal_reason,
                event.stop_reason,
                event.text,
                event.num_turns,
                event.error,
                [denial.tool_use_id for denial in event.denials],
                {model: tokens.output_tokens for model, tokens in event.usage.items()},
                str(event.total_cost_usd) if PRICED in event.usage else None,
                event.output.model_dump() if event.output is not None else None,
            ]
        case _:
            what = [
                str(getattr(event, name))
                for name in type(event).__dataclass_fields__
                if name != "question"
            ]
    shown = canonical(what)
    return f"{type(event).__name__} {shown if len(shown) < 2000 else shown[:2000] + '...'}"


# Tools of the agents. Replays must not run these tools; if a replay does, its results differ from
# the recorded results.


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


@tool(tool_class="edit", paths=("file",), subject="file")
def edit(file: str) -> str:
    """Edit a file."""
    return f"edited {file}"


@tool(hosts=("url",), subject="url", read_only=True)
def fetch(url: str) -> str:
    """Fetch a page."""
    return f"fetched {url}"


@tool(read_only=True)
def count(number: int) -> str:
    """Count."""
    return str(number)


@tool(read_only=True)
def fall() -> str:
    """Fall."""
    raise RuntimeError("ouch")


@tool(read_only=True, timeout_s=0.05)
async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


_attempts = [0]


@tool(read_only=True, retries=1)
def flaky() -> str:
    """Fail at first."""
    _attempts[0] += 1
    if _attempts[0] % 2:
        raise RuntimeError("not yet")
    return "there"


@tool(read_only=True)
def leave() -> str:
    """Leave."""
    raise SystemExit(3)


@tool(read_only=True)
def pick(choice: int | Literal["any"]) -> str:
    """Pick one.

    Args:
        choice: Which one.
    """
    return str(choice)


@tool(interrupt="block")
async def commit() -> str:
    """Commit."""
    await asyncio.sleep(0.3)
    return "committed"


def _even(number: int) -> str | None:
    return None if number % 2 == 0 else "number: must be even"


@tool(check=_even)
def halve(number: int) -> int:
    """Halve a number."""
    return number // 2


@tool(tool_class="shell", concurrent=True, subject="command")
async def shell(command: str) -> str:
    """Run a command."""
    if command == "false":
        await asyncio.sleep(0.05)
        raise RuntimeError("exit 1")
    await asyncio.Event().wait()
    return ""


@tool(needs_person=True)
def choose() -> str:
    """Let a person choose."""
    return "left"


@tool(result_chars_max=1000)
def shout() -> str:
    """Shout."""
    return "\n".join(f"line {n}" for n in range(5000))


@tool(interrupt="cancel")
async def work() -> str:
    """Work for ever."""
    await asyncio.Event().wait()
    return ""


_is_available = [True]


@tool(available=lambda: _is_available[0], optional=True, read_only=True)
def maybe() -> str:
    """Be there, or not."""
    _is_available[0] = False
    return "here"


@tool(name="find_order")
def find_order_before(order: str) -> str:
    """Find an order."""
    return f"found {order}"


@tool(name="search_orders", aliases=("find_order",))
def find_order_now(order: str) -> str:
    """Find an order."""
    return f"found {order}"


class Refund(BaseModel):
    """A refund."""

    order: str
    cents: int


def priced(*content: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 100_000, "output_tokens": 1, "cache_read_input_tokens": 0}
    return message(*content, model=PRICED, usage=usage)


def _allow_x(consent: Consent) -> Reply:
    if consent.about["input"] == {"what": "x"}:
        return Reply(True, scope="session")
    return Reply(False, reason="Not on a Sunday.")


def _steering(folder: Path) -> ExternalInput:
    inbox, sent = Inbox(), list[bool]()

    def on(event: Event) -> None:
        if isinstance(event, ToolDispatch) and not sent:
            sent.append(True)
            inbox.steer("Not y!")

    return ExternalInput(inbox=inbox, on=on)


def _follow_up(folder: Path) -> ExternalInput:
    inbox = Inbox()
    inbox.follow_up("And then?")
    inbox.steer("Louder")
    return ExternalInput(inbox=inbox)


def _stopping(kind: type, soon: bool = False) -> Callable[[Path], ExternalInput]:
    """Return an external input that stops the run at the first event of a kind.

    The run is stopped immediately or, with `soon`, a little later from another thread.
    """

    def external_input(folder: Path) -> ExternalInput:
        abort, seen = Abort(), list[Event]()

        def on(event: Event) -> None:
            if isinstance(event, kind) and not seen:
                seen.append(event)
                threading.Timer(0.1, abort.stop).start() if soon else abort.stop()
            if isinstance(event, Result):
                abort.clear()

        return ExternalInput(abort=abort, on=on)

    return external_input


def _stopped_during_approval(folder: Path) -> ExternalInput:
    abort = Abort()

    async def person(consent: Consent) -> bool:
        abort.stop()
        await asyncio.Event().wait()
        return True

    return ExternalInput(abort=abort, person=person)


def _roots(folder: Path) -> ExternalInput:
    root, outside = folder / "root", folder / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "door").symlink_to(outside)
    return ExternalInput(roots=(root,))


def _storing(folder: Path) -> ExternalInput:
    def keep(tool_use_id: str, text: str) -> str:
        (folder / "kept.txt").write_text(text)
        return "kept.txt"

    return ExternalInput(keep=keep)


def _daily_spending(folder: Path) -> ExternalInput:
    amounts = iter([Decimal("0.5"), Decimal("4")])
    return ExternalInput(spent_today=lambda: next(amounts))


def _rules(**texts: str) -> tuple[Rule, ...]:
    behaviors: Any = {"allow": "user", "ask": "project", "deny": "policy"}
    return tuple(Rule.parse(rule, kind, behaviors[kind]) for kind, rule in texts.items())  # type: ignore[arg-type]


SCENARIOS: dict[str, Scenario] = {
    "parallel-reads": Scenario(
        "Read-only calls start while the response arrives, run concurrently, and are reported in "
        "their order.",
        [
            streamed(
                message(call("a", "look", where="box"), text("and"), call("b", "look", where="bag"))
            ),
            streamed(DONE),
        ],
        [look],
    ),
    "fifty-calls": Scenario(
        "Fifty parallel calls run, at most ten at a time, each with its result in its place.",
        [streamed(message(*(call(f"c{n}", "count", number=n) for n in range(50)))), streamed(DONE)],
        [count],
    ),
    "consent": Scenario(
        "A person allows a call for the session and denies another; neither approval is requested "
        "twice.",
        [
            streamed(message(call("a", "write", what="x"), call("b", "write", what="x"))),
            streamed(message(call("c", "write", what="y"))),
            streamed(DONE),
        ],
        [write],
        options={"permissions": Permissions()},
        external_input=lambda folder: ExternalInput(person=_allow_x),
    ),
    "nobody-to-ask": Scenario(
        "If no person can answer, approvals are denied, and a tool that needs a person fails at "
        "once.",
        [
            streamed(message(call("a", "write", what="x"))),
            streamed(message(call("b", "choose"))),
            streamed(DONE),
        ],
        [write, choose],
        options={"permissions": Permissions(rules=_rules(allow="choose"))},
    ),
    "rules": Scenario(
        "Deny precedes ask, and ask precedes allow; a blocked host is denied in every mode.",
        [
            streamed(
                message(
                    call("a", "write", what="small"),
                    call("b", "write", what="secret"),
                    call("c", "fetch", url="https://ok.example"),
                    call("d", "fetch", url="https://evil.example"),
                    *(call(source, "write", what=f"by {source}") for source in SOURCES),
                )
            ),
            streamed(DONE),
        ],
        [write, fetch],
        options={
            "permissions": Permissions(
                rules=(
                    *_rules(allow="write", deny="write(secret*)"),
                    *(Rule.parse(f"write(by {each})", "deny", each) for each in SOURCES),
                ),
                blocked_hosts=("evil.example",),
            )
        },
    ),
    "accept-edits": Scenario(
        "In acceptEdits, edits inside the roots run, and other writes need approval; there is no "
        "person.",
        [
            streamed(message(call("a", "edit", file="notes.txt"), call("b", "write", what="x"))),
            streamed(DONE),
        ],
        [edit, write],
        options={"permissions": Permissions(mode="acceptEdits")},
        external_input=_roots,
    ),
    "dont-ask": Scenario(
        "In dontAsk, no approval is requested: calls that need approval are denied.",
        [
            streamed(message(call("a", "look", where="box"), call("b", "write", what="x"))),
            streamed(DONE),
        ],
        [look, write],
        options={"permissions": Permissions(mode="dontAsk")},
        external_input=lambda folder: ExternalInput(person=_allow_x),
    ),
    "stopped-in-commit": Scenario(
        "A tool that must not be interrupted runs to its end before the run ends.",
        [streamed(message(call("a", "commit"), call("b", "commit")))],
        [commit],
        external_input=_stopping(ToolDispatch, soon=True),
    ),
    "steered-output": Scenario(
        "A structured output that was given before a new user message does not end the run.",
        [
            streamed(
                message(
                    call("a", "write", what="x"), call("b", "structured_output", order="x", cents=1)
                )
            ),
            streamed(message(call("c", "structured_output", order="y", cents=2))),
        ],
        [write],
        options={"output": Refund},
        external_input=_steering,
    ),
    "budget-of-the-session": Scenario(
        "The budget of a conversation applies across its runs.",
        [streamed(priced(text("One."))), streamed(priced(text("Two.")))],
        prompts=("First", "Second", "Third"),
        options={"model": PRICED, "budget": Budget(session_usd=Decimal("0.4"))},
    ),
    "paths": Scenario(
        "A path that leads out of the roots, directly or through a link, is denied in every mode.",
        [
            streamed(
                message(
                    call("a", "edit", file="notes.txt"),
                    call("b", "edit", file="door/x"),
                    call("c", "edit", file="../outside/x"),
                )
            ),
            streamed(DONE),
        ],
        [edit],
        external_input=_roots,
    ),
    "plan-mode": Scenario(
        "In plan mode only readers run.",
        [
            streamed(message(call("a", "look", where="box"), call("b", "write", what="x"))),
            streamed(DONE),
        ],
        [look, write],
        options={"permissions": Permissions(mode="plan")},
    ),
    "tool-errors": Scenario(
        "Unknown tools, invalid or truncated input, failures, exits and timeouts become results; "
        "one call is retried; coercion is reported.",
        [
            streamed(
                message(
                    call("a", "missing"),
                    call("b", "count", number="3"),
                    call("c", "count", number="three"),
                    call("d", "fall"),
                    call("e", "wait"),
                    {**call("f", "count"), "cut_input": '{"num'},
                    call("g", "halve", number=3),
                    call("h", "halve", number=4),
                    call("i", "flaky"),
                    call("j", "leave"),
                    call("k", "pick", choice="any"),
                    call("l", "pick", choice="some"),
                )
            ),
            streamed(DONE),
        ],
        [count, fall, wait, halve, flaky, leave, pick],
    ),
    "stopped-before-request": Scenario(
        "Stopped just before a request was sent; the next run of the conversation continues.",
        [streamed(DONE)],
        prompts=("Hello", "Go on"),
        external_input=_stopping(RequestStart),
    ),
    "siblings": Scenario(
        "A failing shell stops its concurrent calls.",
        [
            streamed(
                message(call("a", "shell", command="sleep"), call("b", "shell", command="false"))
            ),
            streamed(DONE),
        ],
        [shell],
    ),
    "doubled-ids": Scenario(
        "Calls with a duplicate ID get a unique ID; a repeated call is not run again.",
        [
            streamed(
                message(
                    call("a", "write", what="x"),
                    call("a", "write", what="y"),
                    call("a", "write", what="x"),
                )
            ),
            streamed(message(call("a", "look", where="box"))),
            streamed(DONE),
        ],
        [write, look],
    ),
    "long-result": Scenario(
        "A result that is too long is stored in a file; the model gets both ends and the path.",
        [streamed(message(call("a", "shout"))), streamed(DONE)],
        [shout],
        external_input=_storing,
    ),
    "renamed-tool": Scenario(
        "A renamed tool can be called by its former name.",
        [streamed(message(call("a", "find_order", order="A-1"))), streamed(DONE)],
        [find_order_before],
        replayed_tools=[find_order_now],
    ),
    "tool-set": Scenario(
        "An optional tool is offered only in turns in which it is available.",
        [
            streamed(message(call("a", "maybe"))),
            streamed(message(call("b", "maybe"))),
            streamed(DONE),
        ],
        [maybe],
    ),
    "retries": Scenario(
        "Overloads, by status and inside a stream, are retried; a broken response and its calls are"
        " void.",
        [
            error(529, "overloaded_error"),
            cut_after(message(call("a", "look", where="box"), text("So")), 7),
            streamed(message(call("b", "look", where="bag"))),
            streamed(DONE),
        ],
        [look],
    ),
    "too-long": Scenario(
        "A prompt that does not fit ends the run, with this reason.",
        [
            error(
                400,
                "invalid_request_error",
                text="prompt is too long: 210000 tokens > 200000 maximum",
            )
        ],
    ),
    "refusal": Scenario(
        "A refusal by the model is an error.",
        [streamed(message(text("No."), stop_reason="refusal"))],
    ),
    "steering": Scenario(
        "A message that is sent while a tool runs is delivered after it; the calls that follow are "
        "skipped.",
        [
            streamed(message(call("a", "write", what="x"), call("b", "write", what="y"))),
            streamed(DONE),
        ],
        [write],
        external_input=_steering,
    ),
    "follow-up": Scenario(
        "Follow-up messages are delivered when the run would end.",
        [streamed(message(text(words))) for words in ("One", "ONE", "Two")],
        external_input=_follow_up,
    ),
    "stopped-in-stream": Scenario(
        "Stopped in the middle of a response; the partial content is kept, and the conversation "
        "continues with a new prompt.",
        [streamed(message(text("Hello you"))), streamed(DONE)],
        prompts=("Hello", "Go on"),
        external_input=_stopping(TextDelta),
    ),
    "stopped-before-tools": Scenario(
        "Stopped after the response and before its tools; each call has an error as its result.",
        [streamed(message(call("a", "write", what="x"), call("b", "write", what="y")))],
        [write],
        external_input=_stopping(Message),
    ),
    "stopped-in-tool": Scenario(
        "Stopped between tools; the running tool is stopped, and the next one never starts.",
        [
            streamed(
                message(
                    call("a", "look", where="box"), call("b", "work"), call("c", "write", what="x")
                )
            )
        ],
        [look, work, write],
        external_input=_stopping(ToolDone, soon=True),
    ),
    "stopped-while-asked": Scenario(
        "Stopped during an approval wait.",
        [streamed(message(call("a", "write", what="x")))],
        [write],
        options={"permissions": Permissions()},
        external_input=_stopped_during_approval,
    ),
    "stopped-before-retry": Scenario(
        "Stopped while the loop waits before a retry.",
        [error(529, "overloaded_error", retry_after="5")],
        external_input=_stopping(Retry),
    ),
    "max-turns": Scenario(
        "A run ends after the maximum number of turns that used tools.",
        [
            streamed(message(call("a", "look", where="box"))),
            streamed(message(call("b", "look", where="bag"))),
        ],
        [look],
        options={"max_turns": 2},
    ),
    "budget": Scenario(
        "A run ends when its budget is spent; a call that needs a decision no longer runs.",
        [streamed(priced(call("a", "write", what="x")))],
        [write],
        options={"model": PRICED, "budget": Budget(interaction_usd=Decimal("0.3"))},
    ),
    "budget-of-the-day": Scenario(
        "The spending of the day is requested before each call.",
        [streamed(priced(call("a", "look", where="box")))],
        [look],
        options={"model": PRICED, "budget": Budget(day_usd=Decimal(4))},
        external_input=_daily_spending,
    ),
    "output": Scenario(
        "A structured output: text is not enough, invalid outputs are returned to the model, and a "
        "valid output ends the run.",
        [
            streamed(message(text("Done."))),
            unstreamed(message(call("a", "structured_output", order="x"))),
            streamed(message(call("b", "structured_output", order="x", cents=5))),
        ],
        options={"output": Refund},
    ),
}
SCENARIOS |= OF_RECOVERY
SCENARIOS |= OF_CONTEXT
SCENARIOS |= OF_PROMPT
SCENARIOS |= OF_HOOKS
SCENARIOS |= OF_SUB_AGENTS
SCENARIOS |= OF_SESSIONS


def record(names: Sequence[str]) -> None:
    """Record scenarios into their fixtures, with their events."""
    from agentobs.recording.journal.home import open_home
    from agentobs.recording.journal.segments import segment_ids
    from agentobs.recording.vault.vault import read_session
    from replay.fixture.writer import write as fixture_bytes

    with tempfile.TemporaryDirectory() as folder:
        os.environ["AGENTOBS_HOME"] = str(Path(folder) / "home")
        sessions = {name: asyncio.run(_record(name, Path(folder))) for name in names}
        agentobs.stop_recorder()
        home = open_home(os.environ["AGENTOBS_HOME"])
        for name, (session_id, events) in sessions.items():
            recording = read_session(home, session_id, segment_ids(home))
            target = FIXTURES / name
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            (target / "recording.jsonl").write_bytes(fixture_bytes(recording, {}))
            (target / "events.txt").write_text("".join(f"{each}\n" for each in events))


async def _record(name: str, folder: Path) -> tuple[str, list[str]]:
    scenario, own = SCENARIOS[name], folder / name
    own.mkdir()
    _is_available[0], _attempts[0] = True, 0
    external_input = scenario.external_input(own)
    with Provider(scenario.replies) as provider:
        async with provider.client() as client:
            agentobs.record(client)
            with agentobs.session(name) as session:
                playing = play(name, client, external_input, scenario.tools)
                events = [event async for event in playing]
    return session.session_id, in_order(events)


if __name__ == "__main__":
    record(sys.argv[1:] or list(SCENARIOS))

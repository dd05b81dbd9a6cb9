"""Scenarios: scripted responses, expectations, faults, and forks that continue live."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

import agentobs
from agentobs import world
from agentobs.cli import main
from agentobs.cli.demo import refund_agent
from agentobs.errors import UsageError
from agentobs.recording.session import stop_recorder
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, ToolExchange
from replay import (
    DivergenceError,
    Fault,
    Fixture,
    Fork,
    Next,
    Replayer,
    ReplayOptions,
    calls,
    fails,
    load,
    says,
)
from replay.scenario.faults import parse_fault
from replay.virtual_time import time_patches
from tests.provider_script import call, script, streamed, text
from tests.replay.agents import KEY, Agent, frozen, last_session, recorded, weather
from tests.replay.test_tool_policies import Shop, unstreamed

REFUND = load(Path(__file__).parents[2] / "fixtures" / "refund-loop")


@pytest.fixture(scope="module")
def sunny(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session of a third-party agent with three turns."""
    return weather(tmp_path_factory.mktemp("sunny"))


def until(replayed: Replayer, turn: int, **more: Any) -> Next:
    return replayed.until(refund_agent.answer, **REFUND.header["arguments"], turn=turn, **more)


def test_scripted_responses_follow_the_recorded_turns() -> None:
    """After the turn of `until`, the agent receives the scripted responses and completes, and their tool calls run."""
    with Replayer(REFUND) as replayed:
        replayed.then(
            says("One moment.") + calls("issue_refund", order_id="A-17", amount="41.90"),
            says("Done."),
        )
        step = until(replayed, 2, tools="live")
    assert step.result == "Done."
    (refunded,) = step.later
    assert refunded.tool("issue_refund").text == "refunded 4190 cents for A-17"
    assert step.decision("issue_refund").behavior == "allow"


def test_without_a_script_the_agent_stops_at_its_next_request() -> None:
    """Without scripted responses, the step of `until` has a next request, but no result."""
    with Replayer(REFUND) as replayed:
        step = until(replayed, 2, tools="live")
    assert step.now.request is not None
    assert (step.result, step.later) == (None, ())


class Till:
    """A third-party agent whose tool `charge` has side effects, and which sends a notification if `charge` fails."""

    def __init__(self, url: str | None = None) -> None:
        self.charged: list[int] = []
        self.notified: list[str] = []
        self.noted: list[str] = []

        @agentobs.record_tool(mutating=True)
        def charge(amount: int) -> str:
            self.charged.append(amount)
            return f"charged {amount}"

        @agentobs.record_tool(mutating=True)
        def notify(text: str) -> None:
            self.notified.append(text)

        @agentobs.record_tool
        def note(text: str) -> None:
            self.noted.append(text)

        self.shop, self.notify, self.note = Shop(url, charge=charge), notify, note

    def run(self) -> str:
        try:
            return self.shop.run()
        except Exception as error:
            self.note(type(error).__name__)
            self.notify(f"operator: {error}")
            return "Sorry."


@pytest.fixture(scope="module")
def till(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A session with two turns that call `charge`, and a final turn."""
    tmp = tmp_path_factory.mktemp("till")
    responses = [unstreamed(call(n, "charge", amount=n), number=n) for n in (1, 2)]
    run = recorded(
        tmp, lambda url: Till(url).run(), [*responses, unstreamed(text("Done."), number=3)]
    )
    return frozen(tmp, run, "till")


@pytest.mark.parametrize("tools", ["recorded", "live", {"*": "execute"}])
def test_without_responses_no_tool_with_side_effects_runs(till: Fixture, tools: Any) -> None:
    """When the recorded responses end, tools with side effects do not run, even if the agent handles the end as a
    failure.
    """
    with Replayer(till) as replayed:
        agent = Till()
        step = replayed.until(agent.run, turn=1, tools=tools)
    assert (step.result, agent.charged, agent.notified) == (None, [], [])
    assert agent.noted == ["ReplayStopped"]


def test_a_scripted_call_with_side_effects_runs_only_if_named(till: Fixture) -> None:
    """A scripted call of a tool with side effects runs only if `tools` names the tool; otherwise an error explains
    this.
    """
    script_of = calls("charge", amount=2), says("Fine.")
    for tools in ("recorded", "live", {"*": "execute"}, {"charge": "replay"}):
        agent = Till()
        with pytest.raises(UsageError, match=r"add it to tools=, as in tools=\['charge'\]"):
            with Replayer(till) as replayed:
                replayed.then(*script_of)
                replayed.until(agent.run, turn=1, tools=tools)
        assert (agent.charged, agent.notified) == ([], [])
    agent = Till()
    with Replayer(till) as replayed:
        replayed.then(*script_of)
        step = replayed.until(agent.run, turn=1, tools={"charge": "execute"})
    assert (step.result, agent.charged) == ("Fine.", [1, 2])


def test_live_includes_all_tools_of_the_agent_loop(till: Fixture) -> None:
    """In the agent loop, `tools="live"` also runs tools with side effects; without it, a scripted call is an error."""
    refund = calls("issue_refund", order_id="A-17", amount="41.90")
    with pytest.raises(UsageError, match="issue_refund"), Replayer(REFUND) as replayed:
        replayed.then(refund, says("Done."))
        until(replayed, 2)
    for tools in ("live", ["issue_refund"]):
        with Replayer(REFUND) as replayed:
            replayed.then(refund, says("Done."))
            step = until(replayed, 2, tools=tools)
        assert step.later[0].tool("issue_refund").text == "refunded 4190 cents for A-17"


def test_a_scripted_failure_is_a_provider_error(sunny: Fixture) -> None:
    """A scripted status other than 200 raises the SDK's exception in the agent, which then has no result."""
    with Replayer(sunny) as replayed:
        replayed.then(fails(400, "invalid_request_error"))
        step = replayed.until(Agent().answer, "How is it?", turn=1)
    assert (step.now.request is not None, step.result) == (True, None)


@pytest.mark.parametrize("streams", [True, False])
def test_the_sdk_reads_scripted_responses(sunny: Fixture, streams: bool) -> None:
    """The SDK can read a scripted response with a text and two tool calls, streamed or not."""

    def agent(prompt: str) -> Any:
        client = agentobs.record(anthropic.Anthropic(api_key=KEY))
        request: dict[str, Any] = {
            **Agent().ask(),
            "messages": [{"role": "user", "content": prompt}],
        }
        with client.messages.stream(**request) as stream:
            stream.get_final_message()
        request["messages"] = [*request["messages"], {"role": "assistant", "content": "x"}]
        if not streams:
            return client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            return stream.get_final_message()

    with Replayer(sunny) as replayed:
        replayed.then(says("Both.") + calls("weather", city="Oslo") + calls("clock", zone="UTC"))
        message = replayed.until(agent, "How is it?", turn=1).result
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert message.content[1].input == {"city": "Oslo"}
    assert message.content[1].id != message.content[2].id
    assert message.stop_reason == "tool_use"


@pytest.mark.slow
def test_a_failed_expectation_shows_both_steps() -> None:
    """An expectation that fails an assertion, returns False or names a missing tool fails with the recorded and the
    current step.
    """

    def refunds(step: Next) -> None:
        assert not step.tool("issue_refund").is_error, "the refund failed"

    def never(step: Next) -> bool:
        return False

    for expect, message in (
        (refunds, "the refund failed"),
        (never, "the expectation never does not hold"),
    ):
        with Replayer(REFUND) as replayed, pytest.raises(AssertionError) as raised:
            until(replayed, 2, expect=expect)
        assert message in str(raised.value)
        assert "recorded after turn 2:" in str(raised.value)
    with Replayer(REFUND) as replayed:
        step = until(replayed, 2, expect=lambda step: step.tool("issue_refund").is_error)
    assert not step.differs
    with (
        Replayer(REFUND) as replayed,
        pytest.raises(AssertionError, match="was not called in this turn"),
    ):
        until(replayed, 2, expect=lambda step: step.tool("nothing"))


@pytest.mark.parametrize(
    "text",
    [
        "529",
        "529 at turn 3",
        "429 x2 at request 1",
        "cut after event 12 at turn 2",
        "slow",
        "tool a.b fails at turn 2",
    ],
)
def test_faults_are_parsed_and_printed_alike(text: str) -> None:
    """Each form of a fault is printed in the form in which it is parsed."""
    assert parse_fault(text).text() == text


@pytest.mark.parametrize(
    "text", ["", "529 at", "cut", "tool fails", "slow at turn x", "200", "529 at turn 3 or so"]
)
def test_an_invalid_fault_is_rejected(text: str) -> None:
    """An invalid fault is rejected with an error that contains an example."""
    with pytest.raises(UsageError, match="529 at turn 3"):
        parse_fault(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["529 at turn 2", "529 x2 at request 1", "cut after event 4 at turn 3", "500"]
)
def test_the_agent_loop_recovers_from_provider_failures(fault: str) -> None:
    """After an injected error or cut stream, the agent loop retries and takes the recorded path."""
    with Replayer(REFUND, ReplayOptions(faults=[fault])) as replayed:
        replayed.run(refund_agent.answer, **REFUND.header["arguments"])
    plain = Replayer(REFUND)
    with plain:
        plain.run(refund_agent.answer, **REFUND.header["arguments"])
    more = len(attempts(replayed)) - len(attempts(plain))
    assert more == (2 if "x2" in fault else 1)
    assert replayed.progress.requests_matched == replayed.progress.requests


def attempts(replayed: Replayer) -> list[ModelExchange]:
    return [each for each in replayed.records if isinstance(each, ModelExchange)]


def test_an_agent_without_error_handling_fails(sunny: Fixture) -> None:
    """An injected cut of a stream raises the same error in the agent as with a real provider."""
    with pytest.raises(httpx2.RemoteProtocolError):
        with Replayer(sunny, ReplayOptions(faults=["cut after event 3 at turn 2"])) as replayed:
            replayed.run(Agent().answer, "How is it?")


def test_the_sdk_retries_injected_failures(sunny: Fixture) -> None:
    """The SDK retries an injected status as with a real provider, and the agent completes."""
    with Replayer(
        sunny, ReplayOptions(faults=[Fault("status", request=2, status=529)])
    ) as replayed:
        assert replayed.run(Agent().answer, "How is it?") == "Oslo is wet."
    assert [each.answer.status for each in attempts(replayed)] == [200, 529, 200, 200]


def test_an_injected_tool_failure_is_in_the_next_request() -> None:
    """With an injected failure, a tool does not run, and the agent sends the failure to the model."""
    with Replayer(REFUND, ReplayOptions(faults=["tool lookup_policy fails"])) as replayed:
        step = until(replayed, 1)
    failed = step.tool("lookup_policy")
    assert (failed.is_error, failed.text) == (True, "injected failure")
    assert not step.tool("lookup_order").is_error


def test_a_fault_that_is_never_injected_is_an_error() -> None:
    """A fault that is not injected, because its turn or its tool call does not occur, is an error."""
    for fault in ("529 at turn 9", "tool nothing fails"):
        with pytest.raises(UsageError, match="not injected: "):
            with Replayer(REFUND, ReplayOptions(faults=[fault])) as replayed:
                replayed.run(refund_agent.answer, **REFUND.header["arguments"])


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ServedProvider]:
    """A provider that sends one response after the other, and a separate home."""
    answers = (
        streamed(call(90, "issue_refund", order_id="A-17", amount="41.90"), number=90),
        streamed(text("Refunded."), number=91),
    )
    with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
        stop_recorder()
        yield provider
        stop_recorder()


def test_a_fork_continues_live(live: ServedProvider, tmp_path: Path) -> None:
    """A fork receives recorded responses up to its turn; then it sends the changed request to the provider and runs
    tools.
    """
    fork = Fork(2, model="claude-opus-5", system="Mind the comma.", options={"max_tokens": 77})
    with Replayer(REFUND, ReplayOptions(fork=fork)) as replayed:
        result = replayed.run(refund_agent.answer, **REFUND.header["arguments"])
    assert result == "Refunded."
    bodies = [json.loads(each.question.body) for each in attempts(replayed)]
    assert [each["model"] for each in bodies] == ["claude-sonnet-5"] * 3 + ["claude-opus-5"] * 2
    assert [each["max_tokens"] for each in bodies[-2:]] == [77, 77]
    assert bodies[-1]["system"] == "Mind the comma."
    assert "refunded 4190 cents" in json.dumps(bodies[-1])
    assert live.script.request_count == 2


def test_a_fork_runs_the_tool_calls_of_its_turn(live: ServedProvider, till: Fixture) -> None:
    """In a fork, all tool calls from the last recorded response on run, even with side effects, and earlier calls do
    not.
    """
    responses = script(
        unstreamed(call(7, "charge", amount=2), number=7), unstreamed(text("Live."), number=8)
    )
    for turn, charged in ((1, [1, 2]), (2, [2, 2])):
        with ServedProvider(responses, ServeOptions(match="order")) as provider:
            agent = Till(provider.url)
            with Replayer(till, ReplayOptions(fork=Fork(turn))) as replayed:
                assert replayed.run(agent.run) == "Live."
        assert agent.charged == charged
        called = [r.question.tool_use_id for r in replayed.records if isinstance(r, ToolExchange)]
        assert called == [*["toolu_1", "toolu_2"][:turn], "toolu_7"]


def test_the_live_part_of_a_fork_runs_on_real_time(live: ServedProvider, till: Fixture) -> None:
    """In a fork, waits in the recorded part take no time, and waits in the live part take real time."""
    waited: list[tuple[float, float]] = []

    class Waits(list[int]):
        def append(self, amount: int) -> None:
            super().append(amount)
            started, now = world.monotonic(), time.monotonic()
            time.sleep(0.2)
            waited.append((time.monotonic() - now, (world.monotonic() - started) / 1e9))

    responses = script(unstreamed(text("Live."), number=7))
    with ServedProvider(responses, ServeOptions(match="order")) as provider:
        agent = Till(provider.url)
        agent.charged = Waits()
        with Replayer(till, ReplayOptions(fork=Fork(2))) as replayed:
            clock = time_patches.current_clock()
            assert clock is not None
            time.sleep(3600)
            assert (clock.jumps, clock.is_live) == (1, False)
            assert replayed.run(agent.run) == "Live."
            assert (clock.jumps, clock.is_live) == (1, True)
    assert agent.charged == [2]
    assert all(min(each) >= 0.2 for each in waited)


@pytest.mark.slow
def test_a_fork_is_a_session_that_can_be_frozen(live: ServedProvider, tmp_path: Path) -> None:
    """A fork is recorded including its replayed part, so it can be frozen and replayed without a provider."""
    with Replayer(REFUND, ReplayOptions(fork=Fork(2))) as replayed:
        replayed.run(refund_agent.answer, **REFUND.header["arguments"])
    stop_recorder()
    fixture = frozen(tmp_path, last_session(tmp_path / "home"), "forked")
    with Replayer(fixture) as replaying:
        assert replaying.run(refund_agent.answer, **fixture.header["arguments"]) == "Refunded."
    assert replaying.progress.requests == 5


def test_the_fork_command(
    live: ServedProvider,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`agentobs fork` prints the agent's result and the new session, and rejects an invalid option."""
    monkeypatch.chdir(Path(refund_agent.__file__).parent)
    command = ["fork", str(REFUND.path.parent), "--at", "2"]
    main([*command, "--model", "claude-opus-5", "--set", "max_tokens=99"])
    output = capsys.readouterr()
    assert output.out == "Refunded.\n"
    assert "2 live requests" in output.err
    assert output.err.startswith(
        "live    from turn 2 on, tools execute for real, starting with issue_refund"
    )
    assert f"agentobs freeze {last_session(tmp_path / 'home').session_id}" in output.err
    with pytest.raises(SystemExit) as ended:
        main([*command, "--set", "max_tokens"])
    assert ended.value.code != 0
    assert "expected KEY=JSON" in capsys.readouterr().err


def test_a_fork_that_differs_before_its_turn_diverges(live: ServedProvider) -> None:
    """A fork that differs from the recording before its turn diverges, and no request reaches the provider."""
    with pytest.raises(DivergenceError), Replayer(REFUND, ReplayOptions(fork=Fork(2))) as replayed:
        replayed.run(refund_agent.answer, prompt="Something else")
    assert live.script.request_count == 0


def test_a_fork_at_a_missing_turn_is_rejected() -> None:
    """A fork at a turn that does not exist is rejected."""
    with pytest.raises(UsageError, match="no turn 9"):
        Replayer(REFUND, ReplayOptions(fork=Fork(9)))


def test_auntil_accepts_the_same_options(sunny: Fixture) -> None:
    """`auntil` accepts scripted responses and an expectation, like `until`."""

    async def run_until() -> Next:
        with Replayer(REFUND) as replayed:
            replayed.then(says("Done."))
            return await replayed.auntil(
                refund_agent.answer,
                **REFUND.header["arguments"],
                turn=2,
                expect=lambda step: step.result == "Done.",
            )

    assert asyncio.run(run_until()).now.request is not None

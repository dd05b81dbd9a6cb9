"""Failed sessions of agents with their own loop: the failing turn, and tests that pass only after a fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.errors import UsageError
from agentobs.records.exchanges import Answer, Recording
from agentobs.runtime import process
from replay import DivergenceError, Fixture, Next, Replayer, load
from replay.agent_code import leftover_state
from replay.fixture.failing_turn import failure_of
from replay.freeze.conversion import freeze
from replay.freeze.pytest_template import generated_test as text_of_test
from replay.scenario.departure import ERROR_DRIFT, PROMPT_DRIFT, RESULT_DRIFT
from tests.marks import mark_all_but_first
from tests.provider_script import call, refused, streamed, text
from tests.replay.agents import KEY, MODEL, recorded

Tool = Callable[..., str]


def refund(order: str) -> str:
    raise ValueError("41,90 is not a number")


def price(order: str) -> str:
    return "41,90"


class Clerk:
    """A typical agent with its own loop, which sends tool errors to the model."""

    def __init__(self, url: str | None = None, **changes: Any) -> None:
        self.url = url
        self.system = changes.pop("system", "Refund what was lost.")
        self.prompt = changes.pop("prompt", "Refund A-17.")
        self.turns_max = changes.pop("turns_max", 9)
        self.catches = changes.pop("catches", Exception)
        self.finish: Callable[[str], Any] = changes.pop("finish", str)
        self.tools: dict[str, Tool] = {"price": price, "refund": refund, **changes}

    def run(self) -> Any:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=self.url, max_retries=0))
        messages: list[Any] = [{"role": "user", "content": self.prompt}]
        with agentobs.session("clerk"):
            for _ in range(self.turns_max):
                with client.messages.stream(
                    model=MODEL, max_tokens=64, system=self.system, messages=messages
                ) as stream:
                    message = stream.get_final_message()
                calls = [block for block in message.content if block.type == "tool_use"]
                if not calls:
                    return self.finish("".join(b.text for b in message.content if b.type == "text"))
                messages += [
                    {"role": "assistant", "content": [b.to_dict() for b in message.content]},
                    {"role": "user", "content": [self.result(block) for block in calls]},
                ]
            raise RuntimeError("too many turns")

    def result(self, block: Any) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": block.id}
        try:
            return {**result, "content": self.tools[block.name](**block.input)}
        except self.catches as error:
            return {**result, "content": str(error), "is_error": True}


def turns(*names: str, last: str = "Done.") -> list[Answer]:
    """Return responses with one tool call each, and then a response with a text."""
    calls = [streamed(call(n, name, order="A-17"), number=n) for n, name in enumerate(names, 1)]
    return [*calls, streamed(text(last), number=len(names) + 1)]


def session_of(tmp_path: Path, responses: Sequence[Answer], **changes: Any) -> Recording:
    """Record a session of the clerk, even if the clerk fails."""

    def run(url: str) -> None:
        try:
            Clerk(url, **changes).run()
        except Exception as error:
            raised.append(error)

    raised: list[Exception] = []
    return recorded(tmp_path, run, responses)


def fixture_of(tmp_path: Path, responses: Sequence[Answer], **changes: Any) -> Fixture:
    """Record and freeze a session of the clerk."""
    return load(freeze(session_of(tmp_path, responses, **changes), tmp_path / "clerk", {}).fixture)


def verdicts(fixture: Fixture, **changes: Any) -> tuple[str, str]:
    """Run the bodies of the two generated tests against a changed clerk."""
    failure = failure_of(fixture)
    assert failure is not None

    def reaches() -> None:
        with Replayer(fixture) as replayed:
            replayed.reach(Clerk(**changes).run, turn=failure.turn)

    def fixed() -> None:
        with Replayer(fixture) as replayed:
            step = replayed.until_change(Clerk(**changes).run, turn=failure.live_from)
        assert step.differs, step.describe()
        assert not step.failed, step.describe()

    return verdict(reaches), verdict(fixed)


def verdict(test: Callable[[], None]) -> str:
    try:
        test()
    except Exception as error:
        return type(error).__name__
    return "green"


def give_up(answer: str) -> Any:
    agentobs.fail("not-refunded")


def broken(answer: str) -> Any:
    raise KeyError("total")


def paid(order: str) -> str:
    return "refunded"


LOOP = turns(*["refund"] * 4)
RED, GREEN = ("green", "AssertionError"), ("green", "green")


@pytest.mark.parametrize(
    ("responses", "buggy", "turn", "live_from", "reason"),
    [
        (turns("price", "refund"), {"finish": give_up}, 2, 2, "tool refund returned an error"),
        (turns("price"), {"finish": give_up}, 2, 1, "the agent declared the failure after"),
        (turns("price"), {"finish": broken}, 2, 1, "the agent raised KeyError@"),
        (turns("price", "refund"), {"catches": ()}, 2, 2, "the agent raised ValueError@"),
        (LOOP, {"turns_max": 4}, 1, 1, "tool refund returned an error"),
        (
            LOOP,
            {"turns_max": 4, "refund": price},
            2,
            1,
            "tool refund was called 4 times with the same input",
        ),
        ([*turns("price")[:1], refused(529)], {}, 1, 1, "request 2 returned status 529"),
        ([refused(529)], {}, 1, 1, "request 1 returned status 529"),
    ],
    ids=["error", "fail", "raised", "raised-in-tool", "loop", "quiet-loop", "refused", "first"],
)
def test_the_failing_turn_is_derived_from_the_session(
    tmp_path: Path,
    responses: list[Answer],
    buggy: dict[str, Any],
    turn: int,
    live_from: int,
    reason: str,
) -> None:
    """The failing turn is derived from tool errors in requests, repeated calls, rejected requests, and the outcome."""
    failure = failure_of(fixture_of(tmp_path, responses, **buggy))
    assert failure is not None
    assert (failure.turn, failure.live_from) == (turn, live_from)
    assert failure.reason.startswith(reason)


def test_a_recovered_error_is_not_the_failure(tmp_path: Path) -> None:
    """The error of a tool that later succeeds is not chosen as the failure."""
    outcomes: Any = iter([ValueError("busy"), "41,90"])

    def flaky(order: str) -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    fixture = fixture_of(tmp_path, turns("price", "price"), price=flaky, finish=broken)
    failure = failure_of(fixture)
    assert failure is not None
    assert (failure.turn, failure.live_from) == (3, 1)


@pytest.mark.parametrize(
    ("responses", "buggy", "changes", "expected"),
    mark_all_but_first(
        [
            (turns("price", "refund"), {"finish": give_up}, {}, RED),
            (turns("price", "refund"), {"finish": give_up}, {"refund": paid}, GREEN),
            (turns("price", "refund"), {"finish": give_up}, {"finish": str}, GREEN),
            (turns("price", "refund"), {"finish": give_up}, {"price": paid}, RED),
            (turns("price", "refund"), {"finish": give_up}, {"price": paid, "refund": paid}, GREEN),
            (
                turns("price", "refund"),
                {"finish": give_up},
                {"finish": broken},
                ("green", "KeyError"),
            ),
            (turns("price"), {"finish": broken}, {}, RED),
            (turns("price"), {"finish": broken}, {"finish": str}, GREEN),
            (turns("price"), {"finish": broken}, {"price": paid}, GREEN),
            (turns("price", "refund"), {"catches": ()}, {}, RED),
            (turns("price", "refund"), {"catches": ()}, {"refund": paid}, GREEN),
            (turns("price", "refund"), {"catches": ()}, {"catches": Exception}, GREEN),
            (LOOP, {"turns_max": 4}, {}, RED),
            (LOOP, {"turns_max": 4}, {"refund": paid}, GREEN),
            (LOOP, {"turns_max": 4}, {"turns_max": 2}, RED),
            (LOOP, {"turns_max": 4}, {"turns_max": 6}, RED),
            (LOOP, {"turns_max": 4, "refund": price}, {"turns_max": 6}, RED),
        ],
        pytest.mark.slow,
    ),
)
def test_only_a_correct_fix_makes_both_tests_pass(
    tmp_path: Path,
    responses: list[Answer],
    buggy: dict[str, Any],
    changes: dict[str, Any],
    expected: tuple[str, str],
) -> None:
    """Both generated tests pass only after a fix of the tool, the error handling or the end of the agent."""
    fixture = fixture_of(tmp_path, responses, **buggy)
    assert verdicts(fixture, **{**buggy, **changes}) == expected


def test_a_different_error_text_is_the_same_failure(tmp_path: Path) -> None:
    """A tool that fails with a different error text is not fixed."""

    def fails_differently(order: str) -> str:
        raise ValueError("please try again")

    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    assert verdicts(fixture, finish=give_up, refund=fails_differently) == RED


@pytest.mark.slow
def test_a_changed_prompt_is_reported_and_is_not_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed prompt is reported, but does not count as a fix, because the recorded responses still lead to the
    failure.
    """
    # so that the notes do not contain state that other tests have left in this process
    monkeypatch.setattr(process.state(leftover_state.State), "is_isolated", True)
    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    assert verdicts(fixture, finish=give_up, system="Be kind.") == RED
    assert verdicts(fixture, finish=give_up, system="Be kind.", refund=paid) == GREEN
    assert verdicts(fixture, finish=give_up, prompt="Please refund A-17.", refund=paid) == GREEN
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Clerk(finish=give_up, system="Be kind.").run, turn=2)
    assert step.describe().splitlines()[:2] == [
        "the session fails as recorded: tool refund returned an error in turn 2",
        PROMPT_DRIFT.format("system"),
    ]
    assert replayed.notes == [f"clerk: {PROMPT_DRIFT.format('system')}"]


def test_an_agent_that_succeeds_earlier_is_fixed(tmp_path: Path) -> None:
    """Both tests pass if the agent now succeeds at an earlier turn, because it no longer repeats its request."""

    def reading(url: str | None = None, *, can_read: bool = False) -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url, max_retries=0))
        messages: list[Any] = [{"role": "user", "content": "Give me JSON."}]
        with agentobs.session("reading"):
            for _ in range(3):
                with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
                    answer = stream.get_final_text()
                if can_read:
                    return answer
                messages += [
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": "Again."},
                ]
            raise ValueError("no JSON")

    def run(url: str) -> None:
        with pytest.raises(ValueError, match="no JSON"):
            reading(url)

    responses = [streamed(text("{1}"), number=number) for number in (1, 2, 3)]
    fixture = load(freeze(recorded(tmp_path, run, responses), tmp_path / "reading", {}).fixture)
    failure = failure_of(fixture)
    assert failure is not None
    assert (failure.turn, failure.live_from) == (3, 1)
    with Replayer(fixture) as replayed:
        replayed.reach(reading, can_read=True, turn=3)
    assert "leaves the recorded path after turn 1, before the tested turn 3" in replayed.notes[0]
    with Replayer(fixture) as replayed:
        step = replayed.until_change(reading, can_read=True, turn=1)
    assert (step.differs, step.failed, step.result) == (True, False, "{1}")
    with Replayer(fixture) as replayed:
        step = replayed.until_change(reading, turn=1)
    assert not step.differs


def test_an_agent_that_makes_no_request_is_not_fixed(tmp_path: Path) -> None:
    """An agent that makes no request does not reach the failure, so neither test passes."""
    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)

    def idle() -> None:
        return None

    with pytest.raises(DivergenceError, match="ended before turn 2"), Replayer(fixture) as replayed:
        replayed.reach(idle, turn=2)
    with (
        pytest.raises(DivergenceError, match="the agent did not send this request"),
        Replayer(fixture) as replayed,
    ):
        replayed.until_change(idle, turn=2)


def test_the_step_is_the_first_difference(tmp_path: Path) -> None:
    """The step contains the first tool result that differs from the recording, next to the recorded result."""
    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Clerk(refund=paid, finish=give_up).run, turn=2)
    assert (step.turn, step.tool("refund").text, step.tool("refund").is_error) == (
        2,
        "refunded",
        False,
    )
    assert step.recorded.tool("refund").is_error
    assert replayed.notes == []


def test_changed_results_before_the_failing_turn_are_not_a_fix(tmp_path: Path) -> None:
    """Changed tool results before the failing turn are not a fix, and a note explains how to test from the earlier
    turn.
    """
    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Clerk(price=paid, finish=give_up).run, turn=2)
    assert (step.differs, step.failed) == (False, True)
    assert replayed.notes == [f"clerk: {RESULT_DRIFT.format(2)}"]
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Clerk(price=paid, finish=give_up).run, turn=1)
    assert (step.differs, step.turn, step.tool("price").text) == (True, 1, "refunded")


def test_another_text_of_an_error_is_not_a_fix(tmp_path: Path) -> None:
    """A tool that still fails, with another text, is not fixed; a note states that only the provider can show the
    effect of the text.
    """

    def refund_with_hint(order: str) -> str:
        raise ValueError("41,90 is not a number; use a point")

    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Clerk(refund=refund_with_hint, finish=give_up).run, turn=2)
    assert (step.differs, step.failed) == (False, True)
    assert ERROR_DRIFT in step.describe()
    assert replayed.notes == [f"clerk: {ERROR_DRIFT}"]


@pytest.mark.slow
def test_an_agent_that_diverges_early_is_not_fixed(tmp_path: Path) -> None:
    """An agent that leaves the recorded path before the tested turn is not fixed."""

    class Chatty(Clerk):
        def result(self, block: Any) -> dict[str, Any]:
            return {"type": "text", "text": "I looked it up."}

    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    with Replayer(fixture) as replayed:
        replayed.reach(Chatty(finish=give_up).run, turn=2)
    assert "leaves the recorded path after turn 1, before the tested turn 2" in replayed.notes[0]
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Chatty(finish=give_up).run, turn=2)
    assert not step.differs
    assert step.describe().startswith("the agent does not reach the turn that is tested\n")


class Stubborn(Clerk):
    """An agent that retries without limit."""

    attempts = 0

    def run(self) -> Any:
        while True:
            self.attempts += 1
            try:
                return super().run()
            except Exception:
                continue


@pytest.mark.slow
def test_an_agent_that_retries_forever_is_stopped(tmp_path: Path) -> None:
    """An agent that retries without limit is stopped after an expected change and after a divergence."""
    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    clerk = Stubborn(refund=paid)
    with Replayer(fixture) as replayed:
        step: Next = replayed.until_change(clerk.run, turn=2)
    assert step.differs
    assert 20 < clerk.attempts < 100
    clerk = Stubborn(refund=paid)
    with pytest.raises(DivergenceError), Replayer(fixture) as replayed:
        replayed.run(clerk.run)
    assert 20 < clerk.attempts < 100


def test_a_session_with_a_wrong_result_is_frozen_at_a_given_turn(tmp_path: Path) -> None:
    """A session that completed with a wrong result is frozen at the turn that the user chooses."""
    session = session_of(tmp_path, turns("price"))
    complete = freeze(session, tmp_path / "whole", {})
    assert complete.failure is None
    assert "def test_same_path" in complete.test.read_text()
    chosen = freeze(session, tmp_path / "chosen", {}, failing_turn=1)
    assert chosen.failure is not None
    assert (chosen.turn, chosen.failure.reason) == (1, "the turn was chosen with --turn")
    assert chosen.failure.text == "turn 1 was chosen with --turn"
    assert 'replay.until_change(turn=1, tools="live")' in chosen.test.read_text()
    with pytest.raises(UsageError, match="the session has no turn 7"):
        freeze(session, tmp_path / "none", {}, failing_turn=7)
    assert not (tmp_path / "none").exists()


def test_an_unedited_test_is_replaced_and_an_edited_one_is_kept(tmp_path: Path) -> None:
    """Freezing a session again at another turn replaces the generated test only if the test was not edited."""
    session = session_of(tmp_path, turns("price", "refund"), finish=give_up)
    first = freeze(session, tmp_path / "clerk", {})
    refrozen = freeze(session, tmp_path / "clerk", {}, failing_turn=1)
    assert refrozen.test.read_text() == text_of_test(load(refrozen.fixture))
    assert "turn=1" in refrozen.test.read_text()
    edited = refrozen.test.read_text() + "    assert step.turn == 1\n"
    refrozen.test.write_text(edited)
    freeze(session, tmp_path / "clerk", {}, failing_turn=2)
    assert first.test.read_text() == edited


def test_a_session_cut_after_its_failure_keeps_its_tests(tmp_path: Path) -> None:
    """A session that is cut after its failing turn keeps the tests of the failure; cut before it, only the test of the
    path.
    """
    session = session_of(tmp_path, turns("price", "refund", "price"), finish=give_up)
    cut = freeze(session, tmp_path / "late", {}, until=2)
    assert cut.failure is not None
    assert (cut.failure.turn, cut.failure.reason) == (2, "tool refund returned an error")
    early = freeze(session, tmp_path / "early", {}, until=1)
    assert early.failure is None
    assert "def test_same_path" in early.test.read_text()


def test_a_failed_session_without_a_response_has_tests(tmp_path: Path) -> None:
    """A session whose only request was rejected has tests of its failure, which pass if the agent handles the error."""
    fixture = fixture_of(tmp_path, [refused(529)])
    with Replayer(fixture) as replayed:
        replayed.reach(Clerk().run, turn=1)
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Clerk().run, turn=1)
    assert (step.differs, step.failed) == (False, True)

    class Handling(Clerk):
        def run(self) -> Any:
            try:
                return super().run()
            except Exception:
                return super().run()

    with Replayer(fixture) as replayed:
        replayed.reach(Handling().run, turn=1)
    with Replayer(fixture) as replayed:
        step = replayed.until_change(Handling().run, turn=1)
    assert step.differs


@pytest.mark.slow
def test_only_an_invalid_request_is_fixed_by_a_changed_prompt(tmp_path: Path) -> None:
    """A changed prompt fixes a request that was rejected as invalid, but not a request that failed because of an
    overload.
    """
    fixture = fixture_of(tmp_path, [refused(400, "invalid_request_error")])
    assert verdicts(fixture) == ("green", "AssertionError")
    assert verdicts(fixture, system="Shorter.") == GREEN
    overloaded = fixture_of(tmp_path / "busy", [refused(529)])
    assert verdicts(overloaded, system="Shorter.") == ("green", "AssertionError")


def test_a_change_is_a_divergence_in_an_ordinary_replay(tmp_path: Path) -> None:
    """In an ordinary replay, a changed result is a divergence, because only `until_change` accepts a change."""
    fixture = fixture_of(tmp_path, turns("price", "refund"), finish=give_up)
    with pytest.raises(DivergenceError), Replayer(fixture) as replayed:
        replayed.run(Clerk(refund=paid, finish=give_up).run)
    renamed = dataclasses.replace(session_of(tmp_path, turns("price")), name="other")
    assert freeze(renamed, tmp_path / "other", {}).failure is None

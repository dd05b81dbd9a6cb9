"""Properties of recovery: for any sequence of failures, the conversation is valid, and calls and waits are limited.

Hypothesis simulates the provider: before each LLM request it chooses the response, and the invariants are
checked after each step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any, cast

import hypothesis.strategies as st
from anthropic import AsyncAnthropic
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentobs.agent.events import (
    Continuation,
    Event,
    Fallback,
    Heartbeat,
    Message,
    RequestStart,
    Retry,
    TextDelta,
)
from agentobs.agent.execution.live_answers import Inbox
from agentobs.agent.loop import run
from agentobs.agent.model.output_limits import CONTINUATIONS_MAX
from agentobs.agent.run_result import Result
from agentobs.agent.state import Conversation, initial_state
from agentobs.agent.tools.tool import tool
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.world import Abort

from .agent_runs import options, ticking_world
from .provider import (
    Provider,
    call,
    cut_after,
    error,
    error_in_stream,
    message,
    streamed,
    text,
    unstreamed,
)
from .provider import Reply as ProviderReply

CHANGES = 6
"""The maximum number of changes per request: credentials and the model once, response limit and streaming once per
model.
"""
ATTEMPTS_MAX = 1 + 10 + CHANGES
"""The maximum number of attempts of one attended request."""
HOURS_MAX = ATTEMPTS_MAX + 6 * 3600 // 32 + 1
"""The maximum number of attempts of one unattended request, none of whose long waits is shorter than 32 seconds."""
SHORT_MAX = 32 * 1.25
OVERFLOW = "exceed context limit: {} + 100 > 200000"
SUMMARY = message(text("It said hello."))
THOUGHT = {"type": "thinking", "thinking": "Hm, so", "signature": "c2ln"}
EMPTY_STREAM = ProviderReply((b"",), headers={"content-type": "text/event-stream"}, cut=True)


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool
def write(what: str) -> str:
    """Write something."""
    return what


retry_after = st.sampled_from(["1", "299", "301", "1e9", "nan", "Wed, 31 Dec 1969 23:59:00 GMT"])
refusals = st.one_of(
    st.builds(
        error,
        st.sampled_from([401, 403, 404, 408, 409, 413, 418, 429, 500, 503, 529]),
        st.sampled_from(["api_error", "overloaded_error", "rate_limit_error"]),
        retry=st.sampled_from([None, "true", "false"]),
    ),
    st.builds(
        error,
        st.sampled_from([429, 503, 529]),
        st.just("rate_limit_error"),
        retry_after=retry_after,
    ),
    st.builds(lambda n: error(400, "bad", text=OVERFLOW.format(n)), st.integers(1, 300_000)),
)
overloads = st.sampled_from([error(529, "overloaded_error"), error_in_stream("overloaded_error")])
no_answers = st.sampled_from(
    [
        ProviderReply(is_reset=True),
        ProviderReply((b"{",)),
        ProviderReply((b"[]",)),
        unstreamed({"role": "user"}),
    ]
)
"""A connection reset, and bodies that are not messages."""
breaks = st.one_of(st.just(EMPTY_STREAM), st.integers(1, 12), st.sampled_from(["api_error", "odd"]))
contents = st.lists(
    st.sampled_from(["text", "thinking", "look", "write", "missing", "cut_call"]), max_size=4
)
stops = st.sampled_from(
    ["end_turn", "max_tokens", "max_tokens", "pause_turn", "model_context_window_exceeded"]
)


class Recovery(RuleBasedStateMachine):
    """An agent whose provider sends arbitrary responses and failures."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.replies: deque[tuple[Any, Any]] = deque()
        self.provider = Provider(cast(Any, self._script()))
        self.provider.__enter__()
        self.client: AsyncAnthropic = self.provider.client()
        self.conversation, self.ids = Conversation(), itertools.count(1)
        self.waits: list[float] = []
        self.abort, self.inbox = Abort(), Inbox()
        self.running: AsyncGenerator[Event, None] | None = None
        self.events: list[Event] = []

    def _script(self) -> Iterator[ProviderReply]:
        """Yield the chosen response, streamed if `stream` is set in the request; without a chosen response, yield a
        summary.
        """
        while True:
            answer, broken = self.replies.popleft() if self.replies else (SUMMARY, None)
            if isinstance(answer, ProviderReply):
                yield answer
            elif not self.provider.requests[-1].get("stream"):
                yield unstreamed(answer)
            elif isinstance(broken, int):
                yield cut_after(answer, broken)
            elif isinstance(broken, str):
                partial_reply = streamed(answer)
                (last,) = error_in_stream(broken).chunks
                yield replace(partial_reply, chunks=(*partial_reply.chunks[:6], last))
            else:
                yield streamed(answer)

    @initialize(
        unattended=st.booleans(),
        fallback=st.sampled_from([None, "claude-other-1"]),
        raised=st.sampled_from([None, 64_000]),
        stream=st.booleans(),
        max_retries=st.sampled_from([0, 2, 10, 99]),
    )
    def choose_options(
        self,
        unattended: bool,
        fallback: str | None,
        raised: int | None,
        stream: bool,
        max_retries: int,
    ) -> None:
        self.options = options(
            unattended=unattended,
            fallback_model=fallback,
            max_tokens_raised=raised,
            stream=stream,
            max_retries=max_retries,
        )

    @precondition(lambda self: self.running is None)
    @rule()
    def prompt(self) -> None:
        """Start a run that continues the conversation."""
        world = ticking_world(
            self.client,
            [look, write],
            self.waits,
            abort=self.abort,
            inbox=self.inbox,
            refresh=lambda: True,
        )
        self.events, self.waits[:] = [], []
        self.running = run(
            "Hello",
            world=world,
            options=self.options,
            tools=[look, write],
            conversation=self.conversation,
        )
        self.run_to_next_request()

    @precondition(lambda self: self.running is not None)
    @rule(refusal=refusals)
    def refuse(self, refusal: ProviderReply) -> None:
        """The provider rejects the request."""
        self._respond_with(refusal, None)

    @precondition(lambda self: self.running is not None)
    @rule(nothing=no_answers)
    def send_no_response(self, nothing: ProviderReply) -> None:
        """The connection is reset, or the body is not a message."""
        self._respond_with(nothing, None)

    @rule(kind=st.sampled_from(["steer", "follow_up"]))
    def send_message(self, kind: str) -> None:
        """Send a message to the agent."""
        getattr(self.inbox, kind)("And now?")

    @precondition(lambda self: self.running is not None)
    @rule()
    def stop_run(self) -> None:
        """Stop the run, which ends without another request."""
        before = len(self.provider.requests)
        self.abort.stop()
        self.run_to_next_request()
        assert self.running is None
        assert len(self.provider.requests) == before
        self.abort.clear()

    @precondition(lambda self: self.running is not None)
    @rule(overload=overloads, count=st.integers(1, 12))
    def overload(self, overload: ProviderReply, count: int) -> None:
        """The provider is overloaded a few times in a row."""
        for _ in range(count):
            if self.running is not None:
                self._respond_with(overload, None)

    @precondition(lambda self: self.running is not None)
    @rule(kinds=contents, stop=stops, broken=breaks)
    def break_stream(self, kinds: list[str], stop: str, broken: Any) -> None:
        """A stream breaks before its end."""
        answer = broken if isinstance(broken, ProviderReply) else self._message(kinds, stop)
        self._respond_with(answer, broken)

    @precondition(lambda self: self.running is not None)
    @rule(kinds=contents, stop=stops)
    def respond(self, kinds: list[str], stop: str) -> None:
        """The provider sends a complete response."""
        self._respond_with(self._message(kinds, stop), None)

    def _message(self, kinds: list[str], stop: str) -> dict[str, Any]:
        return message(*(self._block(kind) for kind in kinds), stop_reason=stop)

    def _block(self, kind: str) -> dict[str, Any]:
        arguments = {"look": {"where": "box"}, "write": {"what": "x"}}.get(kind, {})
        match kind:
            case "text":
                return text("word ")
            case "thinking":
                return dict(THOUGHT)
            case "cut_call":
                cut = {**call(f"c{next(self.ids)}", "look"), "cut_input": '{"where": "bo'}
                return cut if self.options.stream else text("word ")
            case _:
                return call(f"c{next(self.ids)}", kind, **arguments)

    def _respond_with(self, answer: Any, broken: Any) -> None:
        self.replies.append((answer, broken))
        self.run_to_next_request()
        self.replies.clear()

    def run_to_next_request(self) -> None:
        """Let the loop continue until its next request or its end."""
        running = self.running
        assert running is not None
        while True:
            event = self.loop.run_until_complete(anext(running))
            self.events.append(event)
            if isinstance(event, Result):
                self.loop.run_until_complete(running.aclose())
                self.running = None
            if isinstance(event, RequestStart | Result):
                return

    @invariant()
    def conversation_is_valid(self) -> None:
        """The provider has accepted all requests, and would accept a new prompt after the conversation."""
        assert self.provider.faults == []
        assert conversation_error(initial_state(self.conversation, "And now?").messages) is None

    @invariant()
    def calls_are_limited(self) -> None:
        """The numbers of attempts per turn, of continuations and of model changes are limited."""
        if not self.events:
            return
        each = HOURS_MAX if self.options.unattended else ATTEMPTS_MAX
        starts = Counter(e.turn for e in self.events if isinstance(e, RequestStart))
        assert (
            max(starts.values(), default=0) <= 4 * each
        )  # the factor covers raised limits and compactions
        assert sum(isinstance(e, Fallback) for e in self.events) <= 1
        row = 0
        for event in self.events:
            if isinstance(event, Continuation) and not event.is_void:
                row += 1
            elif isinstance(event, RequestStart) and event.transition == "next_turn":
                row = 0
            assert row <= CONTINUATIONS_MAX

    @invariant()
    def waits_are_limited(self) -> None:
        """No wait exceeds five minutes, unattended waits have parts of at most 30 seconds, and the waits of each turn
        are limited.
        """
        if not self.events:
            return
        retries = [e for e in self.events if isinstance(e, Retry)]
        assert all(0 <= e.wait_s <= 300 for e in retries)
        if self.options.unattended:
            assert all(wait <= SHORT_MAX for wait in self.waits)
            by_turn = Counter[int]()
            for e in retries:
                by_turn[e.turn] += int(e.wait_s)
            assert max(by_turn.values(), default=0) <= 4 * (6 * 3600 + 10 * SHORT_MAX)
        assert all(e.waited_s < e.wait_s for e in self.events if isinstance(e, Heartbeat))

    @invariant()
    def failures_are_withheld(self) -> None:
        """A run has exactly one result, at its end, and the result's text never comes from a broken response."""
        results = [at for at, e in enumerate(self.events) if isinstance(e, Result)]
        assert results == ([len(self.events) - 1] if self.running is None and self.events else [])
        if not any(isinstance(e, Message) for e in self.events):
            assert all(self.events[at].text == "" for at in results)  # type: ignore[union-attr]
        voided = [e for e in self.events if isinstance(e, TextDelta)]
        assert all(delta.text for delta in voided)

    def teardown(self) -> None:
        if self.running is not None:
            self.loop.run_until_complete(self.running.aclose())
        self.loop.run_until_complete(self.client.close())
        self.loop.close()
        self.provider.__exit__(None, None, None)


def test_any_sequence_of_failures() -> None:
    """After any sequence of failures, the conversation is valid, calls are limited, and no wait exceeds its maximum."""
    run_state_machine_as_test(
        Recovery, settings=settings(max_examples=40, stateful_step_count=15, deadline=None)
    )

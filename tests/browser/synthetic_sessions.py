"""Synthetic sessions, as our agent loop would record them, for the stores of the browser tests.

They are recorded by the real recorder: requests that repeat their history, streams with timed chunks, tools, waits,
hooks, sub-agents and failures. Only the clock is synthetic, so that a session of a thousand turns does not take hours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentobs.recording.facts.tool_failures import class_in_text
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ErrorCause,
    ModelExchange,
    Place,
    Question,
    SessionCall,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
    child_lane,
)
from agentobs.records.facts import (
    Event,
    InteractionEnd,
    InteractionStart,
    Permission,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
)
from agentobs.records.labels import Label, unchecked
from agentobs.sink import Record
from tests.agent.provider import event_bytes, stream_events

SECOND = 1_000_000_000
CHARACTERS_A_TOKEN = 4
"""Characters per token, about as in English; used only for the usage that the synthetic provider reports."""
FRAME_TOKENS = 14_000
"""The token count of a typical system prompt and typical tools, which are shorter in these sessions."""
STREAM = {"content-type": "text/event-stream; charset=utf-8", "request-id": "req_011CSxYz"}


@dataclass
class Lane:
    """The messages of a lane, and the number of tokens that the provider has cached."""

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    turn: int = 0
    cached_tokens: int = 0
    before: str | None = None
    """The ID of the previous attempt."""


class SyntheticSession:
    """Records one session, event by event."""

    def __init__(
        self,
        tell: Callable[[Record], None],
        name: str,
        at_ns: int,
        *,
        model: str = "claude-sonnet-5-5",
        system: str = "You help customers with their orders. Be brief and exact.",
        seed: int = 1,
        content: str = "vault",
        **tags: str,
    ) -> None:
        self.tell, self.now_ns, self.model, self.system = tell, at_ns, model, system
        self._chance = random.Random(seed)
        self.session_id = self.new_id()
        self.lane = Lane("main")
        self.interaction_id: str | None = None
        self._open: list[str] = []
        self._calls = 0
        fact = SessionStart(
            session_id=self.session_id,
            name=declared_label(name),
            started_ns=at_ns,
            entry=Label("shop.agents:run"),
            agentobs_version=Label("0.1.0"),
            sdk_version=Label("2.12.0"),
            python_version=Label("3.11.7"),
            platform=Label("linux"),
            tags={declared_label(key): value for key, value in tags.items()},
            arguments_content=None,
            content=Label(content),
        )
        tell(SessionCall(fact, {"order": 4711}))

    def new_id(self) -> str:
        """Return an ID like a real one: a time, followed by random characters."""
        bits = self._chance.getrandbits(74)
        return f"{self.now_ns // 1_000_000:012x}7{bits >> 62:03x}8{bits & (2**60 - 1):015x}"

    def advance(self, seconds: float) -> int:
        """Advance the clock by about this time; return the exact time in nanoseconds."""
        took = int(seconds * self._chance.uniform(0.7, 1.5) * SECOND)
        self.now_ns += took
        return took

    def place(self, **changes: Any) -> Place:
        source: Any = "main" if self.lane.name == "main" else "sub_agent"
        here = Place(
            self.session_id,
            self.interaction_id,
            self.lane.name,
            self.lane.turn or None,
            self._open[-1] if self._open else None,
            source,
        )
        return dataclasses.replace(here, **changes)

    @contextlib.contextmanager
    def span(self, name: str, label: str | None = None, status: Any = "ok") -> Iterator[str]:
        """Record a span around the enclosed code."""
        span_id = f"{self._chance.getrandbits(64):016x}"
        here = self.place()
        assert self.interaction_id is not None
        self.tell(
            SpanStart(
                session_id=self.session_id,
                trace_id=self.interaction_id,
                span_id=span_id,
                parent_span_id=here.span_id,
                lane=Label(here.lane),
                name=Label(name),
                label=unchecked(label) if label else None,
                started_ns=self.now_ns,
                interaction_id=self.interaction_id,
                turn=here.turn,
                query_source=Label(here.query_source),
            )
        )
        self._open.append(span_id)
        yield span_id
        self._open.pop()
        self.tell(SpanEnd(self.session_id, span_id, self.now_ns, status, None))

    @contextlib.contextmanager
    def interaction(self, prompt: str, result: str = "success") -> Iterator[None]:
        """Record an interaction: a user prompt and all that follows."""
        self.interaction_id = self.new_id()
        self.lane.messages.append({"role": "user", "content": prompt})
        self.tell(
            InteractionStart(
                self.session_id,
                self.interaction_id,
                Label(self.lane.name),
                self.now_ns,
                Label("main"),
            )
        )
        with self.span("interaction", "clerk"):
            yield
        self.tell(
            InteractionEnd(
                self.session_id,
                self.interaction_id,
                self.now_ns,
                Label(result),
                result != "success",
                Label(self.lane.name),
            )
        )

    def turn(
        self,
        *blocks: dict[str, Any],
        model: str | None = None,
        seconds: float = 4.0,
        fails: tuple[str, ...] = (),
        stop_reason: str | None = None,
        **usage: Any,
    ) -> str:
        """Record a turn: failed attempts, then the request and its streamed response; return the attempt."""
        self.lane.turn += 1
        model = model or self.model
        self._measure()
        request_id = ""
        with self.span("llm_request", model):
            for number, kind in enumerate(fails, start=1):
                request_id = self._attempt(model, request_id, _refusal(kind), 0.6, status=529)
                self._event("retry", kind, attempt=number, wait_ns=SECOND)
                with self.span("retry_wait"):
                    self.advance(1.0 * number)
            answer = self._response(blocks, model, stop_reason, usage)
            self._attempt(model, request_id, answer, seconds)
        self.lane.messages.append({"role": "assistant", "content": list(blocks)})
        return self.lane.before or ""

    def results(self, *answers: dict[str, Any]) -> None:
        """Add tool results to the next request."""
        self.lane.messages.append({"role": "user", "content": list(answers)})

    def call_id(self) -> str:
        self._calls += 1
        return f"toolu_01{self._calls:010d}{self._chance.getrandbits(40):012x}"

    def run_call(
        self,
        call: dict[str, Any],
        answer: Any,
        *,
        seconds: float = 1.0,
        is_error: bool = False,
        waited: float = 0.0,
        hook: str | None = None,
        denied: bool = False,
    ) -> dict[str, Any]:
        """Record a tool call: its approval, a hook, its execution, and its result for the model."""
        outcome: Any = "denied" if denied else "failed" if is_error else "executed"
        with self.span("tool", call["name"], "error" if is_error else "ok") as span_id:
            if hook:
                with self.span("hook", hook):
                    self._record_hook_answer(call, hook)
            if waited:
                with self.span("blocked_on_user", call["name"]):
                    self._record_approval(call, self.advance(waited), denied)
            began = self.now_ns
            with self.span("execution", call["name"]):
                took = self.advance(seconds)
            self.tell(
                ToolExchange(
                    place=self.place(span_id=span_id),
                    started_ns=began,
                    duration_ns=took,
                    question=ToolQuestion(call["id"], call["name"], call["input"]),
                    answer=ToolAnswer(
                        answer, is_error or denied, outcome, error=_raised(answer, outcome)
                    ),
                    tool=call["name"],
                )
            )
        said = {"type": "tool_result", "tool_use_id": call["id"], "content": answer}
        return {**said, "is_error": True} if is_error or denied else said

    @contextlib.contextmanager
    def sub_agent(
        self, call: dict[str, Any], agent: str = "researcher", result: str = "success"
    ) -> Iterator[None]:
        """Record the sub-agent that a call starts, in a separate lane; its call fails unless it ends with success."""
        outer, prompt = self.lane, str(call["input"].get("prompt", "Look it up."))
        with self.span("tool", call["name"]) as span_id:
            self.lane = Lane(
                child_lane(outer.name, call["id"]), [{"role": "user", "content": prompt}]
            )
            began = self.now_ns
            with self.span("sub_agent", agent):
                yield
            self._event("sub_agent", result, turns=self.lane.turn)
            self.lane = outer
            is_error = result != "success"
            answer = (
                ToolAnswer("no result", True, "failed")
                if is_error
                else ToolAnswer("It is in stock.")
            )
            self.tell(
                ToolExchange(
                    place=self.place(span_id=span_id),
                    started_ns=began,
                    duration_ns=self.now_ns - began,
                    question=ToolQuestion(call["id"], call["name"], call["input"]),
                    answer=answer,
                    tool=call["name"],
                )
            )

    def compact(self) -> None:
        """Compact the conversation, as our agent loop does when its context window is full."""
        before = self._tokens()
        count = len(self.lane.messages)
        with self.span("compaction", "auto"):
            self.advance(6.0)
        self.lane.messages = [
            {"role": "user", "content": "So far: the customer asked about several orders."}
        ]
        self.lane.cached_tokens = 0
        self._event(
            "compaction",
            "auto",
            tokens_before=before,
            tokens_after=self._tokens(),
            threshold=before,
            messages_before=count,
            messages_after=1,
            summary=1,
        )

    def end(self, outcome: Any = "completed", reason: str | None = None) -> str:
        """Record the end of the session, and return the session."""
        kind = "result:{}" if reason == "max_turns" else "exception:{}@shop.agents:run"
        signature = kind.format(reason) if outcome == "failed" else None
        self.tell(
            SessionEnd(
                self.session_id,
                self.now_ns,
                outcome,
                Label(reason) if reason else None,
                Label(signature) if signature else None,
                0,
            )
        )
        return self.session_id

    def _tokens(self) -> int:
        return len(json.dumps(self.lane.messages)) // CHARACTERS_A_TOKEN

    def _measure(self) -> None:
        tokens = self._tokens() + FRAME_TOKENS
        self._event(
            "context",
            None,
            tokens=tokens,
            window=200_000,
            threshold=167_000,
            messages=len(self.lane.messages),
        )

    def _event(self, kind: str, label: str | None, **numbers: float) -> None:
        here = self.place()
        self.tell(
            Event(
                self.session_id,
                here.interaction_id,
                Label(here.lane),
                here.turn,
                self.now_ns,
                Label(kind),
                Label(label) if label else None,
                numbers,
                query_source=Label(here.query_source),
            )
        )

    def _response(
        self, blocks: Any, model: str, stop_reason: str | None, usage: dict[str, Any]
    ) -> list[bytes]:
        """Return the stream of a response, with usage: the prefix counts as cache reads, new tokens as cache writes."""
        asks = any(block["type"] == "tool_use" for block in blocks)
        said, whole = len(json.dumps(blocks)) // CHARACTERS_A_TOKEN, self._tokens() + FRAME_TOKENS
        new = max(whole - self.lane.cached_tokens, 0)
        counts = {
            "input_tokens": 12,
            "output_tokens": 8 + 5 * said,
            "cache_read_input_tokens": self.lane.cached_tokens,
            "cache_creation_input_tokens": new,
            "cache_creation": {"ephemeral_5m_input_tokens": new, "ephemeral_1h_input_tokens": 0},
            "service_tier": "standard",
        }
        self.lane.cached_tokens = whole
        message = {
            "id": f"msg_{self._chance.getrandbits(48):012x}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": list(blocks),
            "stop_reason": stop_reason or ("tool_use" if asks else "end_turn"),
            "stop_sequence": None,
            "usage": {**counts, **usage},
        }
        return [event_bytes(event) for event in stream_events(message)]

    def _attempt(
        self, model: str, request_id: str, pieces: list[bytes], seconds: float, status: int = 200
    ) -> str:
        """Record an attempt; return the ID of its LLM request."""
        attempt_id, began = self.new_id(), self.now_ns
        took = self.advance(seconds)
        first, step = took // 4, (took - took // 4) // len(pieces)
        body = {
            "model": model,
            "max_tokens": 4096,
            "stream": True,
            "system": self.system,
            "tools": TOOLS,
            "messages": self.lane.messages,
        }
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        retries = {"x-stainless-retry-count": "0"}
        chunks = tuple(Chunk(piece, first + n * step) for n, piece in enumerate(pieces))
        self.tell(
            ModelExchange(
                place=self.place(),
                attempt_id=attempt_id,
                started_ns=began,
                headers_ns=first // 2,
                ended_ns=took,
                question=Question(
                    "POST", "/v1/messages", headers | retries, json.dumps(body).encode()
                ),
                answer=Answer(
                    status,
                    STREAM if status == 200 else {"content-type": "application/json"},
                    chunks,
                    "complete",
                ),
            )
        )
        self.lane.before = attempt_id
        return request_id or attempt_id

    def _record_hook_answer(self, call: dict[str, Any], hook: str) -> None:
        began = self.now_ns
        took = self.advance(0.15)
        question = WorldQuestion("hook", f"{self.lane.turn}:pre_tool_use:{call['id']}:{hook}", call)
        self.tell(WorldExchange(self.place(), began, took, question, {"say": "nothing"}))
        here = self.place()
        self.tell(
            Event(
                self.session_id,
                here.interaction_id,
                Label(here.lane),
                here.turn,
                self.now_ns,
                Label("hook"),
                Label("success"),
                {"duration_ns": took, "blocking": 0, "background": 0, "requests": 0},
                labels={"event": Label("pre_tool_use"), "hook": Label(hook)},
            )
        )

    def _record_approval(self, call: dict[str, Any], waited_ns: int, denied: bool) -> None:
        here = self.place()
        self.tell(
            Permission(
                session_id=self.session_id,
                interaction_id=here.interaction_id,
                lane=Label(here.lane),
                turn=here.turn,
                tool_use_id=Label(call["id"]),
                tool=declared_label(call["name"]),
                at_ns=self.now_ns,
                behavior="deny" if denied else "allow",
                reason_type=Label("person"),
                source=None,
                resolver=Label("person"),
                rule=None,
                approval_requested=True,
                approval_wait_ns=waited_ns,
            )
        )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thinking(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": "c2lnbmF0dXJl"}


def _refusal(kind: str) -> list[bytes]:
    error = {"type": "error", "error": {"type": kind, "message": "Overloaded"}}
    return [json.dumps(error).encode()]


TOOLS = [
    {
        "name": name,
        "description": description,
        "input_schema": {"type": "object", "properties": {"order": {"type": "string"}}},
    }
    for name, description in (
        ("find_order", "Finds an order by its number."),
        ("refund", "Pays money back."),
        ("search_stock", "Finds the quantity of an article in stock."),
        ("send_mail", "Writes to a customer."),
        ("agent", "Starts an agent that looks something up."),
    )
]


def _raised(answer: Any, outcome: str) -> ErrorCause | None:
    """Return the exception that a failed tool raised, as our agent loop records it; None if its text names none."""
    if outcome != "failed" or not isinstance(answer, str):
        return None
    name = class_in_text(answer)
    return ErrorCause("raised", name) if name else None

"""Positions of requests. The callers of most are unknown, as in another process: the evidence is in the requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentobs.determinism.callers import OWN_FRAMES_MAX
from agentobs.determinism.jobs import Job
from agentobs.recording.facts import conversations
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Origin, Place, Question
from agentobs.records.facts import Attempt, Fact, InteractionEnd, InteractionStart, SessionEnd

SESSION = "5" * 32
AGENT, CODE_SESSION = "x-claude-code-agent-id", "x-claude-code-session-id"
Block = dict[str, Any]


def text(words: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": words}


def call(name: str, value: str, tool: str = "ask") -> Block:
    """Return a tool call."""
    return {"type": "tool_use", "id": f"toolu_{name}", "name": tool, "input": {"text": value}}


def result(name: str) -> Block:
    """Return the result of a tool call."""
    return {"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": "done"}


class Wire:
    """Creates the exchanges of one session, and collects the facts that are derived from them."""

    def __init__(self) -> None:
        """Start at time 0."""
        self._interpreter = Interpreter(b"k" * 16)
        self._at_ns = 0
        self._count = 0
        self.facts: list[Fact] = []

    def send(
        self,
        messages: Sequence[Sequence[Block]],
        response: Sequence[Block] | None,
        *,
        tools: Sequence[str] = ("ask",),
        headers: dict[str, str] | None = None,
        takes: int = 10,
        ends: int = 0,
        in_flight: tuple[bytes, ...] = (),
        job: Job | None = None,
        stack: Sequence[str] = (),
        is_cut: bool = False,
        **settings: Any,
    ) -> Attempt:
        """Add an exchange and return its attempt.

        Args:
            messages: the blocks of each message; the roles alternate.
            response: the blocks of the response; None for a rejected request.
            tools: the names of the declared tools.
            headers: the request headers.
            takes: the duration.
            ends: when the exchange ends, as a time since the end of the previous exchange.
            in_flight: the bodies of requests in flight.
            job: the job that sends the request; None if it is unknown.
            stack: the functions of the caller, innermost first.
            is_cut: whether the connection was closed during the response.
            settings: other keys of the body.
        """
        self._count += 1
        self._at_ns += ends or takes + 1
        body = body_of(messages, tools, **settings)
        answer: dict[str, Any] = {"type": "error", "error": {"type": "overloaded_error"}}
        if response is not None:
            stop = "tool_use" if any(b["type"] == "tool_use" for b in response) else "end_turn"
            answer = {
                "id": f"msg_{self._count}", "type": "message", "role": "assistant", "model": "m",
                "content": response, "stop_reason": stop, "usage": {"output_tokens": 1},
            }  # fmt: skip
        attempt_id = f"{self._count:032x}"
        origin = Origin(attempt_id, tuple((each, "", "") for each in stack), None, job)
        exchange = ModelExchange(
            place=Place(SESSION),
            attempt_id=attempt_id,
            started_ns=self._at_ns - takes,
            headers_ns=None,
            ended_ns=takes,
            question=Question(
                "POST", "/v1/messages", headers or {}, body, origin=origin if job else None
            ),
            answer=Answer(
                200 if response is not None else 529,
                {"content-type": "application/json"},
                (Chunk(json.dumps(answer).encode(), takes),),
                "cut" if is_cut else "complete",
            ),
            in_flight=in_flight,
        )
        facts = [written.fact for written in self._interpreter.interpret(exchange).facts]
        self.facts += facts
        return next(fact for fact in facts if isinstance(fact, Attempt))

    def end(self) -> list[tuple[str, int]]:
        """End the session; return the result and the duration of each interaction, in the order of the ends."""
        end = SessionEnd(SESSION, self._at_ns + 5, "completed", None, None, 0)
        self.facts += [written.fact for written in self._interpreter.interpret(end).facts]
        started = {
            f.interaction_id: f.started_ns for f in self.facts if isinstance(f, InteractionStart)
        }
        ends = [fact for fact in self.facts if isinstance(fact, InteractionEnd)]
        return [(str(f.result), f.ended_ns - started[f.interaction_id]) for f in ends]


def body_of(
    messages: Sequence[Sequence[Block]], tools: Sequence[str] = (), **settings: Any
) -> bytes:
    """Return the body of a request."""
    roles = ("user", "assistant")
    sent = [{"role": roles[at % 2], "content": blocks} for at, blocks in enumerate(messages)]
    declared = [{"name": name, "input_schema": {}} for name in tools]
    head = {"model": "m", "max_tokens": 9, **({"tools": declared} if tools else {})}
    return json.dumps({**head, **settings, "messages": sent}).encode()


@pytest.fixture
def wire() -> Wire:
    """Return a session without exchanges."""
    return Wire()


PLAN = [text("Plan the trip.")]
CALLS = [call("a", "Study the mountains."), call("b", "Study the desert.")]
RESULTS = [result("a"), result("b")]


def lanes(attempts: Sequence[Attempt]) -> list[tuple[str, int | None]]:
    """Return the lane and the turn of each attempt."""
    return [(str(each.lane), each.turn) for each in attempts]


def test_a_prompt_in_the_input_of_a_call_names_the_call(wire: Wire) -> None:
    """Of two open calls, the one whose input contains the prompt has started the sub-agent."""
    main = wire.send([PLAN], CALLS)
    desert = wire.send([[text("Study the desert.")]], [call("c", "x")], tools=("look",))
    mountains = wire.send([[text("Be brief. Study the mountains.")]], [text("High.")], tools=())
    again = wire.send(
        [[text("Study the desert.")], [call("c", "x")], [result("c")]],
        [text("Dry.")],
        tools=("look",),
    )
    last = wire.send([PLAN, CALLS, RESULTS], [text("Done.")])
    assert lanes([main, desert, mountains, again, last]) == [
        ("main", 1),
        ("main/toolu_b", 1),
        ("main/toolu_a", 1),
        ("main/toolu_b", 2),
        ("main", 2),
    ]
    assert {each.interaction_id for each in (main, desert, mountains, again, last)} == {
        main.interaction_id
    }
    assert {each.reported_lane for each in (desert, mountains, again)} == {"main"}
    assert wire.end() == [("success", 54)]


def test_a_call_that_cannot_be_identified_is_not_named(wire: Wire) -> None:
    """If two open calls may have started a sub-agent, its lane has a number instead of the ID of a call."""
    wire.send([PLAN], CALLS)
    first = wire.send([[text("Hello.")]], [text("Yes.")], tools=("look",))
    second = wire.send([[text("Hello.")]], [text("No.")], tools=("look",))
    assert lanes([first, second]) == [("main/agent-1", 1), ("main/agent-2", 1)]


def test_equal_prompts_are_told_apart_by_their_responses(wire: Wire) -> None:
    """A request continues the lane whose response it contains, although another lane has the same messages."""
    wire.send([PLAN], [call("a", "Study."), call("b", "Study.")])
    ask = [text("Study.")]
    one = wire.send([ask], [call("c", "x")], tools=("look",))
    two = wire.send([ask], [call("d", "x")], tools=("look",))
    two_later = wire.send([ask, [call("d", "x")], [result("d")]], [text("2")], tools=("look",))
    one_later = wire.send([ask, [call("c", "x")], [result("c")]], [text("1")], tools=("look",))
    assert one.lane != two.lane
    assert (one_later.lane, two_later.lane) == (one.lane, two.lane)


def test_equal_responses_are_continued_once_each(wire: Wire) -> None:
    """Indistinguishable requests are continued once each, so each lane keeps its number of turns."""
    wire.send([PLAN], [call("a", "Study."), call("b", "Study.")])
    ask, look, found = [text("Study.")], [call("c", "x")], [result("c")]
    for messages in ([ask], [ask], [ask, look, found], [ask, look, found]):
        wire.send(messages, look if len(messages) == 1 else [text("Dry.")], tools=("look",))
    turns: dict[str, list[int | None]] = {}
    for fact in wire.facts:
        if isinstance(fact, Attempt):
            turns.setdefault(str(fact.lane), []).append(fact.turn)
    assert sorted(map(str, turns.values())) == ["[1, 2]", "[1, 2]", "[1]"]


def test_a_rejected_request_keeps_its_lane(wire: Wire) -> None:
    """A retry of the first request of a sub-agent, or of a later one, belongs to the same lane and turn."""
    wire.send([PLAN], CALLS)
    ask = [text("Study the desert.")]
    first = [wire.send([ask], answer, tools=("look",)) for answer in (None, [call("c", "x")])]
    later = [
        wire.send([ask, [call("c", "x")], [result("c")]], answer, tools=("look",))
        for answer in (None, [text("Dry.")])
    ]
    assert lanes([*first, *later]) == [("main/toolu_b", 1)] * 2 + [("main/toolu_b", 2)] * 2


def test_a_request_that_is_sent_again_after_a_cut_response_continues_its_interaction(
    wire: Wire,
) -> None:
    """A cut response ends no interaction: an identical request, the first or a later one, continues it."""
    ask = [call("c", "x")]
    cut, later = [text("I")], [PLAN, ask, [result("c")]]
    first = [wire.send([PLAN], answer, is_cut=answer is cut) for answer in (cut, ask)]
    again = [wire.send(later, answer, is_cut=answer is cut) for answer in (cut, [text("Done.")])]
    assert len({each.interaction_id for each in (*first, *again)}) == 1
    assert [name for name, _ in wire.end()] == ["success"]


def test_an_interaction_whose_last_response_was_cut_is_interrupted(wire: Wire) -> None:
    """If nothing follows a cut response, the interaction ends as interrupted, and another prompt opens a new one."""
    one = wire.send([PLAN], [text("I")], is_cut=True)
    two = wire.send([[text("Who are you?")]], [text("A planner.")])
    assert one.interaction_id != two.interaction_id
    assert [name for name, _ in wire.end()] == ["success", "interrupted"]


def test_two_users_of_one_agent_are_independent(wire: Wire) -> None:
    """A conversation with the same tools as the one whose call is open is not taken for its sub-agent."""
    one = wire.send([PLAN], CALLS)
    two = wire.send([[text("Who are you?")]], [text("A planner.")])
    last = wire.send([PLAN, CALLS, RESULTS], [text("Done.")])
    assert lanes([one, two, last]) == [("main", 1), ("main", 2), ("main", 3)]
    assert one.interaction_id == last.interaction_id != two.interaction_id
    assert wire.end() == [("success", 10), ("success", 32)]


def test_a_forced_call_may_be_the_final_answer(wire: Wire) -> None:
    """A response that had to be a call may never be continued, so it does not start the next conversation."""
    for prompt in ("Extract a name.", "Extract a date."):
        choice = {"type": "tool", "name": prompt}
        attempt = wire.send(
            [[text(prompt)]], [call(prompt[-5:-1], "x")], tools=(prompt,), tool_choice=choice
        )
        assert attempt.lane == "main"
    assert [name for name, _ in wire.end()] == ["interrupted", "interrupted"]


def test_agents_that_the_client_names_are_lanes(wire: Wire) -> None:
    """The lane of a named agent depends on its name only; a request without a name is not from a sub-agent."""
    of_session = {CODE_SESSION: "s"}
    main = wire.send([PLAN], CALLS, headers=of_session)
    named = [
        wire.send([[text(prompt)]], answer, headers={**of_session, AGENT: agent}, tools=("look",))
        for agent, prompt, answer in (
            ("a17", "Warm up.", [text("Ready.")]),
            ("a18", "Study the desert.", [text("Dry.")]),
            ("a17", "A summary of the work.", [text("Done.")]),
        )
    ]
    side = wire.send([[text("A title?")]], [text("Trip")], headers=of_session, tools=())
    last = wire.send([PLAN, CALLS, RESULTS], [text("Done.")], headers=of_session)
    assert lanes([main, *named, side, last]) == [
        ("main", 1),
        ("main/agent-a17", 1),
        ("main/toolu_b", 1),
        ("main/agent-a17", 2),
        ("main", None),
        ("main", 2),
    ]
    assert (side.query_source, side.makes_turns) == ("side", False)
    assert {each.interaction_id for each in (main, *named, side, last)} == {main.interaction_id}
    assert wire.end() == [("success", 65)]


def test_a_request_during_the_first_request_is_a_side_request(wire: Wire) -> None:
    """A title that is generated while the first request of an agent is in flight is not an interaction."""
    title = wire.send(
        [[text("A title for: Plan the trip.")]],
        [text("Trip")],
        tools=(),
        in_flight=(body_of([PLAN], ["ask"]),),
    )
    main = wire.send([PLAN], [text("Done.")], takes=20, ends=5)
    assert lanes([title, main]) == [("main", None), ("main", 1)]
    assert (title.interaction_id, title.query_source) == (None, "side")
    assert wire.end() == [("success", 20)]


def test_prompts_without_tools_are_not_side_requests(wire: Wire) -> None:
    """Concurrent prompts are separate interactions if none of them uses tools."""
    bodies = [body_of([[text(each)]]) for each in ("One?", "Two?", "Three?")]
    for each in ("One?", "Two?", "Three?"):
        wire.send(
            [[text(each)]], [text("Yes.")], tools=(), takes=20, ends=1, in_flight=tuple(bodies)
        )
    assert wire.end() == [("success", 20)] * 3


def test_a_forgotten_conversation_can_be_continued(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are too many conversations, the oldest is forgotten and its interaction ends; it can still continue."""
    monkeypatch.setattr(conversations, "CONVERSATIONS_MAX", 2)
    wire.send([PLAN], CALLS)
    for prompt in ("One?", "Two?"):
        wire.send([[text(prompt)]], [text("Yes.")])
    last = wire.send([PLAN, CALLS, RESULTS], [text("Done.")])
    assert (last.lane, last.turn) == ("main", 4)
    assert [name for name, _ in wire.end()] == ["success", "success", "interrupted", "success"]


def test_durations_are_never_negative(wire: Wire) -> None:
    """Of two concurrent prompts, the one that ends later may have started earlier."""
    wire.send([[text("One?")]], [call("a", "x")], takes=5)
    wire.send([[text("Two?")]], [text("Yes.")], takes=50, ends=1)
    wire.send([[text("One?")], [call("a", "x")], [result("a")]], None, takes=60, ends=1)
    assert all(duration >= 0 for _, duration in wire.end())


def as_text(*calls: Block) -> list[Block]:
    """Return a message that contains calls as text."""
    return [text(f"Calling tools: {[each['id'] for each in calls]}")]


FOUND = [text("Observation: high, dry")]


def test_calls_and_results_may_be_texts(wire: Wire) -> None:
    """A request that continues after calls belongs to their interaction, even without results or after a retry."""
    history, attempts = [PLAN], [wire.send([PLAN], CALLS)]
    for name, said in (("c", as_text(*CALLS)), ("d", [text("(empty)")])):
        history = [*history, said, FOUND]
        attempts += [wire.send(history, answer) for answer in (None, [call(name, "x")])]
    final = wire.send([*history, as_text(call("d", "x")), FOUND], [text("Done.")])
    assert lanes([*attempts, final]) == [("main", turn) for turn in (1, 2, 2, 3, 3, 4)]
    assert {each.interaction_id for each in attempts} == {final.interaction_id}
    assert wire.end() == [("success", 65)]


def test_calls_of_sub_agents_may_be_texts(wire: Wire) -> None:
    """Sub-agents that send their calls and results as text keep their lanes, even if a result quotes the call."""
    main = wire.send([PLAN], CALLS)
    asks = {"a": [text("Study the mountains.")], "b": [text("Study the desert.")]}
    look = {name: call(f"look_{name}", "all of the weather", "look") for name in asks}
    first = [wire.send([asks[name]], [look[name]], tools=("look",)) for name in asks]
    quoted = [text("Observation: all of the weather is fine")]
    second = [
        wire.send([asks[name], as_text(look[name]), quoted], [text("High.")], tools=("look",))
        for name in asks
    ]
    last = wire.send([PLAN, as_text(*CALLS), FOUND], [text("Done.")])
    assert lanes([main, *first, *second, last]) == [
        ("main", 1),
        *(("main/toolu_a", 1), ("main/toolu_b", 1)),
        *(("main/toolu_a", 2), ("main/toolu_b", 2)),
        ("main", 2),
    ]
    assert {each.interaction_id for each in (main, *first, *second)} == {last.interaction_id}
    assert wire.end() == [("success", 65)]


def test_a_prompt_after_a_final_answer_opens_an_interaction(wire: Wire) -> None:
    """A final answer is a text, or a call that was forced; what follows it is a prompt."""
    done, more = [text("Done.")], [text("And then?")]
    history = [PLAN, as_text(*CALLS), FOUND]
    forced: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "ask"}}
    sent = [
        wire.send([PLAN], CALLS),
        wire.send(history, done),
        wire.send([*history, done, more], [call("c", "x")], **forced),
        wire.send([*history, done, more, as_text(call("c", "x")), more], done),
    ]
    first, second, third, fourth = (each.interaction_id for each in sent)
    assert first == second
    assert len({first, third, fourth}) == 3
    assert [name for name, _ in wire.end()] == ["success", "interrupted", "success"]


def test_a_shortened_history_is_followed_by_a_prompt(wire: Wire) -> None:
    """A chat that keeps only the final answer of its last interaction does not continue after its calls."""
    more = [text("And then?")]
    sent = [
        wire.send([PLAN], CALLS),
        wire.send([PLAN, CALLS, RESULTS], [call("answer", "x")]),
        wire.send([PLAN, [text("x")], more], [text("Done.")]),
    ]
    first, second, third = (each.interaction_id for each in sent)
    assert first == second != third
    assert [name for name, _ in wire.end()] == ["interrupted", "success"]


@pytest.mark.parametrize(
    ("tools", "calls", "is_inside", "stack", "is_sub_agent"),
    [
        (("ask", "end"), 2, True, ["run"], True),
        (("ask", "end"), 1, True, ["run"], False),
        (("ask",), 2, True, ["run"], False),
        (("ask", "end"), 1, False, ["run", "ask", "run", "main"], True),
        (("ask", "end"), 2, False, ["summarize", "main"], False),
        (("ask",), 1, False, ["run", "ask", "run", "main"], False),
    ],
)
def test_a_forced_call_may_start_a_sub_agent(
    wire: Wire,
    tools: Sequence[str],
    calls: int,
    is_inside: bool,
    stack: Sequence[str],
    is_sub_agent: bool,
) -> None:
    """Agents with several tools may have to call one in each step; a final answer is one call, and runs nothing."""
    job = Job(None, "main")
    any_tool: dict[str, Any] = {"tool_choice": {"type": "any"}}
    wire.send([PLAN], CALLS[:calls], tools=tools, job=job, stack=["run", "main"], **any_tool)
    own = Job(job, "work") if is_inside else job
    sent = wire.send([[text("Hello.")]], [text("Yes.")], tools=("look",), job=own, stack=stack)
    assert (sent.lane != "main") == is_sub_agent


@pytest.mark.parametrize(
    ("outer", "stack", "is_sub_agent"),
    [
        (["run"], ["run"], False),
        (["run", "main"], ["run", "main"], False),
        (["run", "main"], ["ask", "main"], True),
        (["run"] * OWN_FRAMES_MAX, ["run"] * OWN_FRAMES_MAX, True),
    ],
)
def test_a_sub_agent_in_the_same_job_is_called_by_other_functions(
    wire: Wire, outer: Sequence[str], stack: Sequence[str], is_sub_agent: bool
) -> None:
    """In the job of an open call, the same functions start an independent conversation, if all of them are known."""
    job = Job(None, "main")
    wire.send([PLAN], CALLS, job=job, stack=outer)
    sent = wire.send([[text("Hello.")]], [text("Yes.")], job=job, stack=stack)
    assert (sent.lane != "main") == is_sub_agent


def test_a_request_that_ends_with_a_response_continues_it(wire: Wire) -> None:
    """A request may contain no message after the response that it continues, as after a pause; the response tells equal
    prompts apart.
    """
    wire.send([PLAN], [call("a", "Study."), call("b", "Study.")])
    ask, parts = [text("Study.")], ([text("Rocks.")], [text("Sand.")])
    first = [wire.send([ask], part, tools=("look",)) for part in parts]
    second = [wire.send([ask, part], [text("Done.")], tools=("look",)) for part in parts]
    assert first[0].lane != first[1].lane
    assert [each.lane for each in second] == [each.lane for each in first]


def test_a_step_with_a_forced_call_is_continued(wire: Wire) -> None:
    """Agents with several tools that must call one in each step may send the calls and results as text."""
    settings: dict[str, Any] = {"tools": ("ask", "end"), "tool_choice": {"type": "any"}}
    first = wire.send([PLAN], CALLS, **settings)
    second = wire.send([PLAN, as_text(*CALLS), FOUND], [call("c", "x", "end")], **settings)
    other = wire.send([[text("Plan a walk.")]], [call("d", "x", "end")], **settings)
    assert first.interaction_id == second.interaction_id != other.interaction_id
    assert lanes([first, second, other]) == [("main", 1), ("main", 2), ("main", 3)]

"""A recorded program that varies its requests is answered in any directory, by the conversation of each request."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions, parse_fault
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Question, Recording
from replay.scenario.script import calls, says
from replay.served.spine_script import LIVE_HEADER, SpineScript
from replay.served.verdict import Verdict
from tests.provider_script import call, refused, script, streamed, text
from tests.replay.coding_agent_provider import (
    AGENTS,
    prepared,
    recorded,
    run,
)

TOTAL = 7 + 2 * AGENTS


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("recorded"))


def replayed(
    recording: Recording, folder: Path, *faults: str, **more: str
) -> tuple[subprocess.CompletedProcess[str], Verdict]:
    """Run the coding agent in new directories, answered from a recording."""
    if not folder.exists():
        prepared(folder)
    answering = SpineScript(recording)
    options = ServeOptions(faults=tuple(map(parse_fault, faults)))
    with ServedProvider(recording, options, script=answering) as provider:
        ended = run(provider.url, folder, **more)
    return ended, answering.result()


def orders(count: int) -> list[str]:
    source = random.Random(4)
    return [",".join(map(str, source.sample(range(AGENTS), AGENTS))) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["", *orders(3)])
def test_all_requests_are_exact_in_another_directory(
    recording: Recording, tmp_path: Path, order: str
) -> None:
    """New IDs and paths, and sub-agents with equal prompts in any order: each gets the response of its own call."""
    ended, verdict = replayed(recording, tmp_path / "some where else", AGENT_ORDER=order)
    assert verdict.explanation() == f"served {TOTAL} of {TOTAL} exchanges: exact {TOTAL}"
    work = tmp_path / "some where else" / "work"
    assert ended.stdout == f"All files in {work} are read.\n"
    assert (work / "out.txt").read_text() == "done\n"


@pytest.mark.soak
def test_many_orders_of_sub_agents_are_exact(recording: Recording, tmp_path: Path) -> None:
    """Twenty of twenty replays are exact."""
    for number, order in enumerate(orders(20)):
        _, verdict = replayed(recording, tmp_path / str(number), AGENT_ORDER=order)
        assert verdict.count("exact") == TOTAL


def test_a_changed_prompt_misses_at_the_first_request(recording: Recording, tmp_path: Path) -> None:
    """The quota request is answered; the client gets a 410 that names the nearest request and the difference."""
    ended, verdict = replayed(recording, tmp_path / "new", AGENT_PROMPT="Delete the files.")
    assert (verdict.count("exact"), verdict.count("drift")) == (1, 0)
    assert verdict.count("miss") >= 1
    assert ended.returncode == 3
    error = json.loads(ended.stderr.splitlines()[0].partition(": ")[2])
    assert error["error"]["type"] == "not_recorded"
    assert "the nearest is request" in error["error"]["message"]
    assert "first difference at $.conversation[0].content[0]" in error["error"]["message"]


def test_a_changed_file_is_drift_where_its_text_is_sent(
    recording: Recording, tmp_path: Path
) -> None:
    """Only the requests that contain the text differ, and each difference has its path and both values."""
    work = prepared(tmp_path / "new")
    (work / "3.txt").write_text("another text\n")
    _, verdict = replayed(recording, tmp_path / "new")
    drifted = [each for each in verdict.requests if each.kind == "drift"]
    [difference] = drifted[0].differences
    assert difference.path == "$.conversation[2].content[0].content"
    assert (difference.expected, difference.actual) == ("file 3\n", "another text\n")
    assert (verdict.count("miss"), len(verdict.unused), verdict.ambiguous) == (0, 0, 0)
    assert verdict.count("exact") + len(drifted) == TOTAL


def test_a_fault_is_followed_by_the_recorded_response(recording: Recording, tmp_path: Path) -> None:
    """An injected status uses no exchange, so the client's next attempt is answered."""
    ended, verdict = replayed(recording, tmp_path / "new", "status:529@1")
    assert ended.returncode == 3
    assert "injected by agentobs serve" in ended.stderr
    assert (len(verdict.requests), len(verdict.unused)) == (0, TOTAL)


# Requests without a program ---------------------------------------------------------------------------------------


def request_with(*messages: Any, agent: str | None = None, **more: Any) -> Question:
    body = {"model": "m", "max_tokens": 9, "messages": list(messages), **more}
    headers = {"x-claude-code-agent-id": agent} if agent else {}
    return Question("POST", "/v1/messages", headers, json.dumps(body).encode())


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(c) if isinstance(c, str) else c for c in content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [text(c) if isinstance(c, str) else c for c in content]}


def result(number: int, content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content}


def made(*pairs: tuple[Question, Answer]) -> Recording:
    base = script(*(answer for _, answer in pairs))
    exchanges = tuple(
        dataclasses.replace(each, question=question, ended_ns=each.started_ns)
        for each, (question, _) in zip(base.exchanges, pairs, strict=True)
        if isinstance(each, ModelExchange)
    )
    return dataclasses.replace(base, exchanges=exchanges)


def served(answering: SpineScript, *questions: Question) -> list[str | int | None]:
    """Return the text of the response to each question; its status if it is an error; None for a miss."""
    found: list[str | int | None] = []
    for question in questions:
        taken = answering.take(question)
        if taken is None:
            found.append(None)
        elif taken.answer.status != 200:
            found.append(taken.answer.status)
        else:
            body = taken.answer.body.decode()
            found.append(json.loads(body.split('_delta", "text": ')[1].split("}")[0]))
    return found


def test_a_repeated_request_gets_the_next_recorded_attempt() -> None:
    """A 529 and its retry are answered in the recorded order; a third attempt is a miss."""
    question = request_with(user("Hello"))
    answering = SpineScript(made((question, refused(529)), (question, streamed(text("Hi")))))
    assert served(answering, question, question, question) == [529, "Hi", None]


def test_equal_first_requests_that_overlapped_are_reported_as_ambiguous() -> None:
    """Nothing distinguishes them, and their responses differ: they are answered in recorded order, and counted."""
    question = request_with(user("Hello"))
    recording = made((question, streamed(text("one"))), (question, streamed(text("two"))))
    answering = SpineScript(at_times(recording, (1, 9), (2, 8)))
    assert served(answering, question, question) == ["one", "two"]
    assert answering.verdict() == "served 2 of 2 exchanges: exact 2, ambiguous 1"
    in_order = SpineScript(recording)
    served(in_order, question, question)
    assert in_order.verdict() == "served 2 of 2 exchanges: exact 2"


def test_a_side_request_never_answers_the_conversation() -> None:
    """A title request has the same prompt; if the conversation starts twice, the second start is a miss."""
    title = request_with(user("Fix it"), system="Write a title.")
    main = request_with(
        user("<system-reminder>now</system-reminder>", "Fix it"), tools=[{"name": "t"}]
    )
    answering = SpineScript(made((title, streamed(text("title"))), (main, streamed(text("done")))))
    assert served(answering, main, main, title) == ["done", None, "title"]


def test_a_continuation_with_another_user_text_is_a_miss() -> None:
    """The position is known, but the recorded response belongs to another question."""
    first = request_with(user("Hello"))
    second = request_with(user("Hello"), assistant(call(1, "look")), user(result(1, "x"), "Go on"))
    recording = made((first, streamed(call(1, "look"))), (second, streamed(text("done"))))
    answering = SpineScript(recording)
    answering.take(first)
    changed = request_with(user("Hello"), assistant(call(1, "look")), user(result(1, "x"), "Stop"))
    assert served(answering, changed, second) == [None, "done"]
    missed = answering.result().requests[1]
    assert (missed.request, missed.first) == (2, "$.conversation[2].content[1]")


def test_results_may_come_in_any_order_and_messages_may_be_split() -> None:
    """Two results in the other order, and each block in its own message, are the same conversation."""
    first = request_with(user("Hello"))
    looked = assistant("Both.", call(1, "look"), call(2, "look"))
    second = request_with(user("Hello"), looked, user(result(1, "x"), result(2, "y")))
    recording = made(
        (first, streamed(text("Both."), call(1, "look"), call(2, "look"))),
        (second, streamed(text("done"))),
    )
    split = [assistant("Both."), assistant(call(1, "look")), assistant(call(2, "look"))]
    other = request_with(user("Hello"), *split, user(result(2, "y")), user(result(1, "x")))
    answering = SpineScript(recording)
    answering.take(first)
    assert served(answering, other) == ["done"]
    assert answering.verdict() == "served 2 of 2 exchanges: exact 2"


def test_a_value_has_one_partner() -> None:
    """If a client confuses two of its IDs, the request is drift; if it only has new ones, it is exact."""
    old, new = (
        [f"{n}{'0' * 7}-0000-4000-8000-000000000000" for n in each] for each in ("12", "34")
    )
    first = request_with(user("Hello"))

    def continued(*ids: str) -> Question:
        results = user(result(1, f"job {ids[0]}"), result(2, f"job {ids[1]} after {ids[2]}"))
        return request_with(user("Hello"), assistant(call(1, "a"), call(2, "b")), results)

    recording = made(
        (first, streamed(call(1, "a"), call(2, "b"))),
        (continued(old[0], old[1], old[0]), streamed(text("done"))),
    )
    for ids, kind in (((new[0], new[1], new[0]), "exact"), ((new[0], new[1], new[1]), "drift")):
        answering = SpineScript(recording)
        served_first = answering.take(first)
        assert served_first is not None
        assert served(answering, continued(*ids)) == ["done"]
        assert answering.result().requests[1].kind == kind


def test_a_response_without_replaced_values_keeps_its_bytes(recording: Recording) -> None:
    """The chunks are the recorded ones, unless a value in them is replaced."""
    answering = SpineScript(recording)
    exchange = answering.exchanges[0]
    taken = answering.take(exchange.question)
    assert taken is not None
    assert taken.answer is exchange.answer


def test_a_run_ends_after_a_turn_and_continues_with_scripted_responses(
    recording: Recording,
) -> None:
    """With `until_turn`, later turns are not answered; with `then`, they get the scripted responses."""
    first = request_with(user("Hello"), tools=[{"name": "look"}])
    second = request_with(
        user("Hello"), assistant(call(1, "look")), user(result(1, "x")), tools=[{"name": "look"}]
    )
    both = made((first, streamed(call(1, "look"))), (second, streamed(text("done"))))
    endings: list[str] = []
    answering = SpineScript(both, until_turn=1, on_end=endings.append)
    answering.take(first)
    assert served(answering, second) == [None]
    assert (endings, answering.verdict()) == (["end"], "served 1 of 1 exchanges: exact 1")
    scripted = SpineScript(both, until_turn=1, then=[calls("look") + says("Again."), says("End.")])
    scripted.take(first)
    assert [scripted.take(second) is not None for _ in range(3)] == [True, True, False]
    assert scripted.verdict() == "served 1 of 1 exchanges: exact 1, scripted 2"


def test_after_a_turn_requests_are_for_the_provider() -> None:
    """The provider gets conversations that are not recorded, later turns, and conversations that were recorded later; a
    conversation that had started before gets its recorded responses.
    """
    first, early, late = (request_with(user(words)) for words in ("Go.", "Title?", "Other?"))
    second = request_with(user("Go."), assistant(call(1, "look")), user(result(1, "a")))
    recording = made(
        (first, streamed(call(1, "look"))),
        (early, streamed(text("title"))),
        (second, streamed(text("done"))),
        (late, streamed(text("other"))),
    )
    answering = SpineScript(recording, until_turn=1, live_mark="mark", ends_at_miss=True)

    def is_live(question: Question) -> bool:
        taken = answering.take(question)
        assert taken is not None
        return taken.answer.headers.get(LIVE_HEADER) == "mark"

    assert [is_live(each) for each in (first, second, early, late)] == [False, True, False, True]
    assert is_live(request_with(user("New.")))
    verdict = answering.result()
    assert (verdict.live, verdict.live_from, verdict.count("exact")) == (3, 2, 2)


def test_a_scripted_call_starts_no_recorded_sub_agent() -> None:
    """The recorded call that started the sub-agent was not sent, so its conversation gets scripted responses."""
    first = request_with(user("Go."))
    second = request_with(user("Go."), assistant(call(1, "look")), user(result(1, "a")))
    sub_agent = request_with(user("Do it."))
    recording = made(
        (first, streamed(call(1, "look"))),
        (second, streamed(call(2, "Agent", prompt="Do it."))),
        (sub_agent, streamed(text("recorded"))),
    )
    then = [calls("Agent", prompt="Do it."), says("scripted")]
    answering = SpineScript(recording, until_turn=1, then=then)
    assert all(answering.take(each) is not None for each in (first, second, sub_agent))
    assert answering.verdict() == "served 1 of 1 exchanges: exact 1, scripted 2"


def test_before_the_turn_nothing_is_for_the_provider() -> None:
    """A request that was not recorded is a miss, which ends the replay."""
    recording = made((request_with(user("Go.")), streamed(text("done"))))
    answering = SpineScript(recording, until_turn=1, live_mark="mark", ends_at_miss=True)
    assert answering.take(request_with(user("Stay."))) is None
    assert answering.take(request_with(user("Go."))) is None
    assert answering.result().live == 0


def test_a_canceled_request_before_the_turn_is_not_for_the_provider() -> None:
    """It has no recorded response, so the run ends there; only a request for a title or the like goes live."""
    first, title = request_with(user("Go.")), request_with(user("Title?"), tools=None)
    called = assistant(call(1, "look"))
    canceled = request_with(user("Go."), called, user(result(1, "a")))
    third = request_with(user("Go."), called, user(result(1, "a"), "Go on."))
    nothing = Answer(None, {}, (), "cancelled")
    recording = made(
        (title, nothing),
        (first, streamed(call(1, "look"))),
        (canceled, nothing),
        (third, streamed(text("done"))),
    )
    answering = SpineScript(recording, until_turn=3, live_mark="mark", ends_at_miss=True)
    of_title, of_first = answering.take(title), answering.take(first)
    assert of_title is not None
    assert of_title.answer.headers == {LIVE_HEADER: "mark"}
    assert of_first is not None
    assert LIVE_HEADER not in of_first.answer.headers
    assert answering.take(canceled) is None
    assert answering.take(third) is None
    verdict = answering.result()
    assert (verdict.live, verdict.live_from) == (1, None)
    assert "request 2 is request 3 of the recording, which has no response" in verdict.explanation()


def test_the_reasons_of_an_end_are_in_the_order_of_the_requests() -> None:
    """Another request cannot report its reason first, because it waits until the reason of the first is reported."""
    waits: list[bool] = []

    def end(_: str) -> None:
        waits.append(answering._lock.locked())

    recording = made((request_with(user("Go.")), streamed(text("done"))))
    answering = SpineScript(recording, on_end=end, ends_at_miss=True)
    assert answering.take(request_with(user("Stay."))) is None
    assert waits == [True]


def test_responses_keep_their_times_only_while_a_background_task_runs() -> None:
    """The client reports the end of the task between two requests, so the responses until then take their time."""
    note = "<task-notification><task-id>b1234567x</task-id></task-notification>"
    started = (call(1, "run"), result(1, "Command running in background with ID: b1234567x."))
    first, second = (
        request_with(user("Hi")),
        request_with(user("Hi"), assistant(started[0]), user(started[1])),
    )
    turns = [user("Hi"), assistant(started[0]), user(started[1]), assistant("Done.")]
    third, fourth = (
        request_with(*turns, user(note)),
        request_with(*turns, user(note), assistant("Ok."), user("?")),
    )
    timed = Answer(200, streamed(text("Done.")).headers, (Chunk(b"x", 5),), "complete")
    recording = made((first, timed), (second, timed), (third, timed), (fourth, timed))
    answering = SpineScript(recording, paces_tasks=True)
    taken = [answering.take(each) for each in (first, second, third, fourth)]
    assert [each and each.answer.chunks[0].after_ns for each in taken] == [0, 5, 0, 0]


def test_a_response_waits_for_concurrent_ones_that_ended_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a background task runs, the main agent gets its response after the sub-agent has got its own."""
    monkeypatch.setattr("replay.served.spine_script.SEEN_SECONDS", 0.0)
    note = "<task-notification><task-id>b1</task-id><tool-use-id>toolu_1</tool-use-id></task-notification>"
    started = (assistant(call(1, "run")), user(result(1, "started")))
    first, sub = request_with(user("Hi")), request_with(user("Sub"))
    second = request_with(user("Hi"), *started)
    third = request_with(user("Hi"), *started, assistant("Ok."), user("?", note))
    recording = made(
        (first, streamed(call(1, "run"))),
        (second, streamed(text("Ok."))),
        (sub, streamed(text("Sub."))),
        (third, streamed(text("End."))),
    )
    timed = at_times(recording, (1, 2), (3, 9), (4, 6), (10, 11))
    answering, order = SpineScript(timed, paces_tasks=True), []
    answering.take(first)

    def main_agent() -> None:
        answering.take(second)
        order.append("main agent")

    thread = threading.Thread(target=main_agent)
    thread.start()
    taken = answering.take(sub)
    assert taken is not None
    order.append("sub-agent")
    answering.note_sent(taken)
    thread.join(30)
    assert order == ["sub-agent", "main agent"]


@pytest.mark.parametrize("are_together", [True, False])
def test_agents_in_the_background_end_so_that_their_reports_come_as_recorded(
    are_together: bool,
) -> None:
    """Two agents that one request reports end together; otherwise the second one ends after the first report."""
    notes = [
        f"<task-notification><task-id>a{n}</task-id><tool-use-id>toolu_{n}</tool-use-id></task-notification>"
        for n in (1, 2)
    ]
    calls = [call(n, "Agent", prompt=prompt) for n, prompt in ((1, "One"), (2, "Two"))]
    started = [user("Hi"), assistant(*calls), user(result(1, "started"), result(2, "started"))]
    waiting = [*started, assistant("Waiting.")]
    one, two = request_with(user("One")), request_with(user("Two"))
    requests = [
        (request_with(user("Hi")), streamed(*calls)),
        (request_with(*started), streamed(text("Waiting."))),
        (one, streamed(text("1."))),
        (two, streamed(text("2."))),
    ]
    if are_together:
        requests.append((request_with(*waiting, user(*notes)), streamed(text("End."))))
    else:
        first = [*waiting, user(notes[0])]
        requests.append((request_with(*first), streamed(text("One more."))))
        second = [*first, assistant("One more."), user(notes[1])]
        requests.append((request_with(*second), streamed(text("End."))))
    answering, order = SpineScript(made(*requests), paces_tasks=True), []
    held, then = (one, two) if are_together else (two, requests[4][0])
    for question in [requests[0][0], requests[1][0], *([] if are_together else [one])]:
        assert answering.take(question) is not None

    def held_agent() -> None:
        answering.take(held)
        order.append("held")

    thread = threading.Thread(target=held_agent)
    thread.start()
    thread.join(0.05)
    order.append("arrives")
    assert answering.take(then) is not None
    thread.join(30)
    assert order == ["arrives", "held"]


def test_a_response_that_was_cut_on_purpose_is_sent_again() -> None:
    """The retry of the client gets the complete response."""
    question = request_with(user("Hello"))
    recording = made((question, streamed(text("Hi"))))
    answering = SpineScript(recording)
    options = ServeOptions(faults=(parse_fault("cut:1@1"),))
    with ServedProvider(recording, options, script=answering) as provider:
        address = provider.url.removeprefix("http://")
        received = []
        for _ in range(2):
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("POST", question.path, question.body)
            with contextlib.suppress(http.client.IncompleteRead):
                received.append(connection.getresponse().read())
            connection.close()
    [exchange] = answering.exchanges
    assert received == [exchange.answer.body]
    assert answering.verdict() == "served 1 of 1 exchanges: exact 2"


def at_times(recording: Recording, *times: tuple[int, int]) -> Recording:
    models = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    pairs = zip(models, times, strict=True)
    exchanges = (dataclasses.replace(e, started_ns=a, ended_ns=b) for e, (a, b) in pairs)
    return dataclasses.replace(recording, exchanges=tuple(exchanges))


def agent_call(number: int) -> dict[str, Any]:
    return call(number, "Agent", prompt="Look around.", description=f"look {number}")


def test_later_results_decide_between_sub_agents_of_a_client_that_removes_marks() -> None:
    """If the results are those of the recording, the matches were right; otherwise they stay ambiguous."""
    first, sub = request_with(user("Hi")), request_with(user("Look around."))
    both = assistant(agent_call(1), agent_call(2))
    second = request_with(user("Hi"), both, user(result(1, "one"), result(2, "two")))
    swapped = request_with(user("Hi"), both, user(result(1, "two"), result(2, "one")))
    recording = at_times(
        made(
            (first, streamed(agent_call(1), agent_call(2))),
            (sub, streamed(text("one"))),
            (sub, streamed(text("two"))),
            (second, streamed(text("done"))),
        ),
        *((1, 2), (3, 9), (4, 8), (10, 11)),
    )
    for last, ambiguous, kind in ((second, 0, "exact"), (swapped, 1, "drift")):
        answering = SpineScript(recording)
        answering.take(first)
        assert served(answering, sub, sub) == ["one", "two"]
        assert answering.result().ambiguous == 1
        assert served(answering, last) == ["done"]
        assert (answering.result().ambiguous, answering.result().requests[-1].kind) == (
            ambiguous,
            kind,
        )


def test_a_sub_agent_is_not_matched_before_the_call_that_started_it() -> None:
    """Two turns start a sub-agent with the same prompt: after the first turn, only the first one can come."""
    first, sub = request_with(user("Hi")), request_with(user("Look around."))
    turn = (assistant(agent_call(1)), user(result(1, "started")))
    second = request_with(user("Hi"), *turn)
    recording = at_times(
        made(
            (first, streamed(agent_call(1))),
            (sub, streamed(text("one"))),
            (second, streamed(agent_call(2))),
            (sub, streamed(text("two"))),
        ),
        *((1, 2), (3, 20), (4, 5), (6, 9)),
    )
    answering = SpineScript(recording)
    answering.take(first)
    assert served(answering, sub) == ["one"]
    answering.take(second)
    assert served(answering, sub) == ["two"]
    assert answering.verdict() == "served 4 of 4 exchanges: exact 4"

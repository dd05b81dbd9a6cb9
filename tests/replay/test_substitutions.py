"""Values that differ in a replay are replaced in both directions, including in streams."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.provider.anthropic.cloud_frames import FRAMES, enframe
from agentobs.provider.bedrock.responses import events_of
from agentobs.provider.dialect import Draft
from agentobs.provider.registry import dialect_of, message_of
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Question
from replay.served.answers import FindSpans, with_replacements
from replay.served.client_text import machine_values, without_inserted_text
from replay.served.matcher import SpineMatcher
from replay.served.request_form import mark, mark_in, without_marks
from replay.served.substitutions import Substitutions
from tests.provider_script import call, message_events, script, streamed, text
from tests.replay.coding_agent_provider import split_stream

PATH = "/v1/messages"


def paired(*pairs: tuple[str, str]) -> Substitutions:
    made = Substitutions()
    for recorded, live in pairs:
        made.pair_directory(recorded, live)
    return made


def test_a_directory_is_replaced_as_a_complete_path() -> None:
    """A longer name with the same start is another directory; the derived name of a directory is also replaced."""
    found = paired(("/work/agent", "/tmp/x"), ("/work/agent/sub", "/tmp/y"))
    recorded = (
        "/work/agent/a /work/agent/sub/b /work/agent-2 /x/work/agent -work-agent. '/work/agent'"
    )
    live = "/tmp/x/a /tmp/y/b /work/agent-2 /x/work/agent -tmp-x. '/tmp/x'"
    assert found.to_live(recorded) == live
    assert found.to_recorded(live) == recorded


def test_each_value_has_one_partner() -> None:
    """A second partner is refused on both sides; the root directory is never paired."""
    found = Substitutions()
    assert found.pair("a", "1")
    assert found.pair("a", "1")
    assert not found.pair("a", "2")
    assert not found.pair("b", "1")
    assert not found.pair("/", "/tmp/x")
    assert found.pairs == {"a": "1"}


@pytest.mark.parametrize(
    ("recorded", "live", "pairs"),
    [
        ("agentId: a0123456789abcdef", "agentId: afedcba9876543210", 1),
        (
            "with ID: b1c2d3e4f. See /t/tasks/b1c2d3e4f.output",
            "with ID: bxxxxxxx1. See /t/tasks/bxxxxxxx1.output",
            1,
        ),
        ("/tmp/tmpabc1/x and /tmp/tmpabc1/y", "/tmp/tmpdef2/x and /tmp/tmpdef2/y", 1),
        ("beautiful", "bestworld", 0),
        ("/tmp/tmpabc1/x", "/tmp/tmpdef2/changed", 0),
        ("/home/a/x", "/home/b/x", 0),
    ],
)
def test_only_values_of_known_forms_are_learnt(recorded: str, live: str, pairs: int) -> None:
    """The text around them must be equal, so a changed word or file name is never learnt."""
    found = Substitutions()
    found.learn({"content": recorded}, {"content": live})
    assert len(found.pairs) == pairs


def find_in(found: Substitutions) -> FindSpans:
    return lambda text, call: found.live_spans(text, is_json=call is not None)


@given(
    size=st.integers(1, 30),
    live=st.sampled_from(["/n", "/a/much/longer/directory", '/with "quotes"/ä']),
)
def test_a_value_that_is_split_between_deltas_is_replaced(size: int, live: str) -> None:
    """The texts and inputs of the response contain the live value; all other events keep their bytes."""
    old = "/recorded/work"
    found = Substitutions()
    found.pair(old, live)
    answer = split_stream(
        streamed(
            text(f"See {old}/a and {old}."), call(1, "read", path=f"{old}/b", n=1), text("end")
        ),
        size,
    )
    new = with_replacements(answer, PATH, find_in(found))
    blocks = message_of(PATH, new).blocks
    assert [block.text for block in blocks] == [f"See {live}/a and {live}.", "", "end"]
    assert blocks[1].value == {"path": f"{live}/b", "n": 1}
    events = [body.body.split(b"\n\n") for body in (answer, new)]
    assert len(events[0]) == len(events[1])
    assert events[0][0] == events[1][0]
    assert events[0][-4:] == events[1][-4:]


def test_a_response_without_a_replaced_value_is_the_same_object() -> None:
    """Its bytes and chunks do not change."""
    found = paired(("/recorded", "/live"))
    answer = split_stream(streamed(text("nothing"), call(1, "read", path="/other")))
    assert with_replacements(answer, PATH, find_in(found)) is answer


def test_a_response_that_is_not_streamed_is_replaced() -> None:
    """In texts and in the inputs of calls; a live value with quotes is escaped."""
    found = Substitutions()
    found.pair("/old", '/n"w')
    content = [text("in /old"), call(1, "read", path="/old/a")]
    body = json.dumps({"type": "message", "role": "assistant", "content": content}).encode()
    answer = Answer(200, {"content-type": "application/json"}, (Chunk(body, 0),), "complete")
    new = json.loads(with_replacements(answer, PATH, find_in(found)).body)
    assert new["content"][0]["text"] == 'in /n"w'
    assert new["content"][1]["input"] == {"path": '/n"w/a'}


def test_a_stream_of_frames_is_replaced() -> None:
    """In texts and in the inputs of calls, on both APIs of Bedrock. Otherwise tools would change the recorded files."""
    found = Substitutions()
    found.pair("/old", "/new")
    content = [text("in /old"), call(1, "read", path="/old/a", n=1)]
    converse = {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"text": "in /old"},
                    {"toolUse": {"toolUseId": "t1", "name": "read", "input": {"path": "/old/a", "n": 1}}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    }  # fmt: skip
    events = [each.partition(b"data: ")[2].strip() for each in message_events(*content)]
    streams = {
        "/model/m/invoke-with-response-stream": enframe(events),
        "/model/m/converse-stream": b"".join(events_of(converse, 1)),
    }
    for path, body in streams.items():
        answer = Answer(200, {"content-type": FRAMES}, (Chunk(body, 7),), "complete")
        new = with_replacements(answer, path, find_in(found))
        first, second = message_of(path, new).blocks
        assert (first.text, second.value) == ("in /new", {"path": "/new/a", "n": 1})
        assert new.chunks[-1].after_ns == 7
        assert with_replacements(answer, path, find_in(Substitutions())) is answer


@pytest.mark.parametrize("is_streamed", [True, False])
def test_thinking_keeps_its_bytes(is_streamed: bool) -> None:
    """It is signed, so a provider would reject a history with changed thinking."""
    old = "/recorded/work"
    found = paired((old, "/live"))
    content = [
        {"type": "thinking", "thinking": f"I look into {old}.", "signature": "c2lnbmVk"},
        text(f"See {old}."),
    ]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": content}
    answer = Answer(
        200,
        {"content-type": "application/json"},
        (Chunk(json.dumps(message).encode(), 0),),
        "complete",
    )
    if is_streamed:
        kind, events = dialect_of(PATH).response_stream(
            Draft("msg_1", "m", message_of(PATH, answer).blocks)
        )
        chunks = tuple(Chunk(event, 0) for event in events)
        answer = dataclasses.replace(answer, headers={"content-type": kind}, chunks=chunks)
    thinking, said = message_of(PATH, with_replacements(answer, PATH, find_in(found))).blocks
    assert (thinking.text, said.text) == (f"I look into {old}.", "See /live.")
    assert thinking.raw["signature"] == "c2lnbmVk"


def test_inserted_text_is_left_out_and_prompts_are_kept() -> None:
    """Only the forms of the client are left out; a prompt with a similar heading is kept."""
    text = (
        "Fix it.<system-reminder>\nToday is Monday.\n</system-reminder>\n# Environment\nUse Python."
    )
    assert without_inserted_text(text) == "Fix it.\n# Environment\nUse Python."
    section = (
        "# Environment\nYou have been invoked in the following environment: \n - x\n# Next\nmore"
    )
    assert without_inserted_text(section) == "# Next\nmore"
    assert (
        without_inserted_text("<usage>duration_ms: 1234</usage>") == "<usage>duration_ms: 0</usage>"
    )


def test_the_values_of_the_machine_are_found() -> None:
    """In the metadata, the environment block, the path of the memory, and the header."""
    body = {
        "metadata": {
            "user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})
        },
        "system": [
            {
                "type": "text",
                "text": "Memory at `/h/u/.claude/projects/-w/memory/`.\n - Primary working directory: /w",
            }
        ],
        "messages": [{"role": "user", "content": "cwd: /other"}],
    }
    assert machine_values(body, {"x-claude-code-session-id": "s"}) == {
        "directory": "/w",
        "configuration": "/h/u/.claude",
        "project": "-w",
        "home": "/h/u",
        "session_id": "s",
        "device_id": "d",
    }


@pytest.mark.parametrize("below", ["", "/pkg", "/pkg/web"])
def test_the_repository_above_the_working_directory_is_replaced(below: str) -> None:
    """Its slug names it, in the path of the memory. Otherwise tools would change the files of the recorded one."""

    def question(root: str) -> Question:
        system = (
            f"Primary working directory: {root}{below}\n"
            f"Memory at `/c/projects/{root.replace('/', '-')}/memory/`."
        )
        body = {"system": system, "messages": [{"role": "user", "content": "Go."}]}
        return Question("POST", PATH, {}, json.dumps(body).encode())

    answer = streamed(call(1, "Write", path="/rec/repo/README.md"))
    [exchange] = script(answer).exchanges
    assert isinstance(exchange, ModelExchange)
    matcher = SpineMatcher([dataclasses.replace(exchange, question=question("/rec/repo"))])
    assert matcher.match(question("/new/x")) == 0
    assert [each.kind for each in matcher.requests] == ["exact"]
    [block] = message_of(PATH, matcher.answer(0)).blocks
    assert block.value == {"path": "/new/x/README.md"}


@given(st.integers(0, 4095))
def test_a_mark_is_read_and_removed(number: int) -> None:
    """It survives `strip`, because it contains no white space."""
    marked = f"Look around.{mark(number)}".strip()
    assert mark_in(marked) == number
    assert without_marks(marked) == "Look around."


def test_text_of_the_user_is_never_left_out() -> None:
    """Tags and durations that the user wrote are not those of the client."""
    texts = [
        "Deploy to <env>staging</env> with duration_ms: 100",
        "What does <system-reminder>x</system-reminder> mean?",
        '{"duration_ms": 5}',
    ]
    assert [without_inserted_text(each) for each in texts] == texts

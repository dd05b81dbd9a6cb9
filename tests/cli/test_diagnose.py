"""`agentobs diagnose`, and the commands that show where the time went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.labels import Label
from agentobs.store.analysis.diagnosis import SIGNATURES
from tests.cli.test_commands import Shell
from tests.provider_script import script, streamed, text
from tests.shared_stores import shared_store
from tests.store.recordings import (
    T0,
    a_home,
    conversation,
    end,
    permission,
    record,
    session_id,
    start,
)
from tests.store.wire_conversations import WireConversation

pytestmark = pytest.mark.xdist_group("diagnose")
SECRET = "the unseen words of a person"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with three sessions: one repeats calls and claims success, one is quiet, one has no content."""
    home = a_home(tmp_path_factory.mktemp("diagnosed"))
    talk = WireConversation(1)
    for _ in range(8):
        [call] = talk.calls(("search", {"query": SECRET}))
        talk.result(call, SECRET, is_error=True)
    talk.says("Done. It was successfully booked.")
    record(home, [start(1, "circles"), *talk.records[1:], end(1)])
    record(home, [*conversation(2, name="quiet"), permission(2, "toolu_1", at=T0)])
    off = start(3, "unsaid")
    record(home, [replace_content(off), end(3)])
    with shared_store(home.path):
        yield home.path


def replace_content(call: Any) -> Any:
    from dataclasses import replace

    from agentobs.records.labels import Label

    return replace(call, start=replace(call.start, content=Label("off")))


@pytest.fixture
def shell(path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(path, capsys)


@pytest.mark.slow
def test_findings_and_advice(shell: Shell) -> None:
    """Each finding is printed with its evidence and with advice, but without content."""
    result = shell("diagnose", "circles")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{session_id(1)} circles\n\ncompleted, but ")
    assert "\n\nrepeated_calls: the same tool with" in result.out
    for words in (
        "the same arguments each time",
        "... and 1 more",
        "what to do: The agent does not learn from the result.",
        "contradictions: a response that claims success",
        "semantic: 8 of 8 calls",
        "not found: rising_costs, full_contexts, large_results",
        "could not be checked: long_waits (this client does not record waits for the user)",
    ):
        assert words in result.out
    assert "unseen" not in result.out
    assert shell("diagnose", "circles", "--fail").code == 1
    assert shell("diagnose", "quiet", "--fail").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("source", ["recorded", "claude-code"])
def test_only_a_recorded_session_is_to_be_frozen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """A session that was imported from a log cannot be replayed, so the advice does not mention `agentobs freeze`."""
    home = a_home(tmp_path)
    began = start(1)
    record(
        home,
        [
            replace(began, start=replace(began.start, source=Label(source))),
            *conversation(1)[1:-1],
            end(1, failed=True),
        ],
    )
    shell = Shell(home.path, capsys)
    ended = shell("diagnose", "story")
    assert ended.code == 0, ended.err
    assert (f"`agentobs freeze {session_id(1)}`" in ended.out) == (source == "recorded")
    assert ("cannot be replayed" in ended.out) == (source != "recorded")
    rows = [json.loads(line) for line in shell("diagnose", "story", "--json").out.splitlines()]
    [todo] = [row["todo"] for row in rows if row["signature"] == "failure"]
    assert todo in ended.out


@pytest.mark.slow
def test_verdicts_as_json(shell: Shell) -> None:
    """In JSON, each signature is an object with all of its evidence, whether it was found or not."""
    rows = [json.loads(line) for line in shell("diagnose", "circles", "--json").out.splitlines()]
    names = [signature.name for signature in SIGNATURES]
    assert [row["signature"] for row in rows] == ["failure", *names]
    found = {row["signature"]: row for row in rows}
    assert [name for name, row in found.items() if row["is_found"]] == [
        "repeated_calls", "repeated_tool_errors", "contradictions",
    ]  # fmt: skip
    assert len(found["repeated_calls"]["evidence"]) == 6
    assert found["repeated_tool_errors"]["strength"] == pytest.approx(8 / 3)
    assert found["long_waits"]["unknown_reason"] == "this client does not record waits for the user"
    assert {row["session_id"] for row in rows} == {session_id(1)}


@pytest.mark.slow
def test_findings_of_all_sessions(shell: Shell) -> None:
    """There is a row for each session and finding, for recent sessions or for all sessions."""
    result = shell("diagnose", "--all", "--json")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["name"], row["signature"], row["times"]) for row in rows] == [
        ("circles", "contradictions", 1),
        ("circles", "repeated_calls", 6),
        ("circles", "repeated_tool_errors", 1),
    ]
    lately = shell("diagnose", "--all", "--since", "2026-09-01", "--fail")
    assert "repeated_calls" in lately.out
    assert lately.code == 1
    later = shell("diagnose", "--all", "--since", "2026-10-01", "--fail")
    assert "repeated_calls" not in later.out
    assert later.code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected one session, or --all. Pass a SESSION or --all."),
        (["quiet", "--all"], "expected one session, or --all"),
        (["quiet", "--since", "7d"], "--since requires --all"),
        (["--all", "--judge", "claude-x"], "--since requires --all, and --judge requires a SESSION"),
        (["nobody"], "nobody: no session with that ID or name"),
        (["unsaid", "--judge", "claude-x"], "--judge claude-x: the content of this session was not recorded"),
    ],
)  # fmt: skip
def test_invalid_options_give_a_one_line_error(
    shell: Shell, arguments: list[str], expected: str
) -> None:
    """Invalid options give one line that states what was found, where, and what to do."""
    ended = shell("diagnose", *arguments)
    assert (ended.code, len(ended.err.splitlines())) == (1, 1)
    assert ended.err.startswith(f"error: {expected}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer_text", "verdict", "words"),
    [
        ("CONTRADICTS", True, "contradicts its results"),
        ("agrees.", False, "agrees with its results"),
        ("Well, well.", None, "was not judged: the reply was neither"),
    ],
)
def test_a_judge(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    answer_text: str,
    verdict: bool | None,
    words: str,
) -> None:
    """The judge receives the answer and the tool results; its request is recorded with the source `classifier`."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up-key")
    answers = script(*(streamed(text(answer_text), number=number) for number in range(2)))
    with ServedProvider(answers, ServeOptions("order")) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        result = shell("diagnose", "circles", "--judge", "claude-haiku-5-5", "--fail")
        assert f"judge claude-haiku-5-5: the answer of turn 9 in main {words}" in result.out
        if verdict:
            row = json.loads(
                shell("diagnose", "circles", "--judge", "x", "--json").out.splitlines()[-1]
            )
            assert (row["signature"], row["is_found"]) == ("judged_contradictions", True)
            assert row["evidence"][0]["contradicts"] is True
    with agentobs.connect(shell.home, ingest=False) as connection:
        asked = connection.execute(_JUDGED).fetchall()
    assert {row[0] for row in asked} == {"classifier"}


_JUDGED = """
    SELECT DISTINCT query_source
    FROM attempts JOIN session_starts USING (session_id)
    WHERE name = 'agentobs-judge'
"""


@pytest.mark.slow
def test_a_judge_that_does_not_respond(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the provider refuses the request, one line is printed."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    result = shell("diagnose", "circles", "--judge", "claude-x")
    assert (result.code, result.err.splitlines()) == (
        1,
        ["error: --judge claude-x: the judge did not respond: APIConnectionError. Check the model's name and "
        "ANTHROPIC_API_KEY."],
    )  # fmt: skip


def test_the_parts_of_the_time(shell: Shell) -> None:
    """The parts of each interaction are listed with their total and source, then the critical path by segment."""
    result = shell("time", "circles")
    assert result.code == 0
    assert "8.50 s in interactions: model 53%, tools 47%" in result.out
    assert "estimated from wire timing" in result.out
    [row] = [json.loads(line) for line in shell("time", "circles", "--json").out.splitlines()]
    parts = [
        value
        for name, value in row.items()
        if name.endswith("_ns") and name not in ("started_ns", "wall_ns") and value is not None
    ]
    assert {name for name, value in row.items() if value is None} == {
        "queued_ns",
        "person_ns",
        "hook_ns",
    }
    assert sum(parts) == row["wall_ns"] == 8_500_000_000
    pieces = [
        json.loads(line) for line in shell("time", "circles", "--path", "--json").out.splitlines()
    ]
    assert [piece["part"] for piece in pieces[:3]] == ["model", "tool", "model"]
    assert sum(piece["duration_ns"] for piece in pieces) == row["wall_ns"]


def test_tools_waits_models_and_orphans(shell: Shell) -> None:
    """Each command works for one session and for all sessions."""
    [row] = [json.loads(line) for line in shell("tools", "--json").out.splitlines()]
    assert (row["name"], row["calls"], row["errors"], row["p95_ns"]) == (
        "search",
        8,
        8,
        500_000_000,
    )
    assert shell("tools", "quiet", "--json").out == ""
    assert "weather" in shell("waits").out
    assert "outcome" in shell("waits", "--hooks").out
    assert "weather" not in shell("waits", "circles").out
    assert shell("waits", "--since", "2026-10-01", "--json").out == ""
    assert shell("models", "circles", "--json").out == ""
    assert shell("orphans", "circles", "--json").out == ""

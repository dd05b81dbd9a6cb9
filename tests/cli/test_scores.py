"""Scores: given by a program or a command, during a session or after it, and used to choose sessions."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.backend import open_store
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from exporters import otlp
from replay import Replayer
from tests import queries
from tests.agent.provider import Provider, call, streamed
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import serving
from tests.exporters.collector import Collector
from tests.exporters.sample_agents import DONE, calls, look, play, recording
from tests.exporters.test_backfill import send
from tests.replay.agents import Agent, answers, frozen, recorded
from tests.shared_stores import shared_store
from tests.store.recordings import T0, a_home, end, record, session_id, start

AESGCM_INSTALLED = importlib.util.find_spec("cryptography") is not None
COMMENT = "canary: the date is wrong"


def agent(name: str, during: Callable[[], None] = lambda: None, **options: Any) -> str:
    """Run a session with one tool call and two turns; `during` runs at its end. Return the ID of the session."""
    replies = [calls(call("toolu_1", "look", where="box")), streamed(DONE)]

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            await play(client, tools=(look,))
            during()

    with Provider(replies) as provider, agentobs.session(name, **options) as session:
        asyncio.run(main(provider))
    return session.session_id


def scores(home: Path, columns: str, table: str = "scores") -> list[tuple[Any, ...]]:
    return queries.query(f"SELECT {columns} FROM {table} ORDER BY at_ns, name", home=home)


def facts_text(home: Path) -> str:
    """Return the facts of all segments as text."""
    return "".join(path.read_text("utf-8") for path in (home / "segments").glob("*.facts"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with one session without scores; tests do not change it."""
    home = tmp_path_factory.mktemp("judged") / "home"
    with recording(home):
        agent("judged")
    with shared_store(home):
        yield home


@pytest.mark.slow
def test_a_program_scores_its_session_its_turns_and_its_tool_calls(tmp_path: Path) -> None:
    """Numbers, booleans and labels are facts; the comment is a digest in the facts, and its text is in the vault."""
    home = tmp_path / "home"

    def during() -> None:
        agentobs.score("correct", 0.25)
        agentobs.score("correct", 0.8, comment=COMMENT)
        agentobs.score("polite", True, turn=2)
        agentobs.score("tool.choice", agentobs.Label("good"), tool_use_id="toolu_1")

    with recording(home):
        agent("judged", during)
    rows = scores(home, "name, value_type, value, label, lane, turn, tool_use_id, source")
    assert rows == [
        ("correct", "number", 0.25, None, None, None, None, "program"),
        ("correct", "number", 0.8, None, None, None, None, "program"),
        ("polite", "boolean", 1.0, None, "main", 2, None, "program"),
        ("tool.choice", "label", None, "good", "main", None, "toolu_1", "program"),
    ]
    last = scores(home, "name, value, given", "latest_scores")
    assert last == [("correct", 0.8, 2), ("polite", 1.0, 1), ("tool.choice", None, 1)]
    [[digest]] = queries.query(
        "SELECT comment FROM latest_scores WHERE comment IS NOT NULL", home=home
    )
    assert digest.startswith("digest:")
    assert "canary" not in facts_text(home)
    assert any(
        "canary" in path.read_text("utf-8") for path in (home / "segments").glob("*.content")
    )


@pytest.mark.slow
def test_a_tool_call_is_named_by_its_id_or_by_the_digest_that_queries_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts contain only the digest of an ID in an unknown form; both name the call."""
    called = {"type": "tool_use", "id": "adas-call", "name": "look", "input": {}}
    body = {"model": "claude-sonnet-5", "content": [called], "role": "assistant", "id": "msg_1"}
    question = Question("POST", "/v1/messages", {}, b'{"model":"claude-sonnet-5","messages":[]}')
    answer = Answer(200, {}, (Chunk(json.dumps(body).encode(), 1),), "complete")
    exchange = ModelExchange(Place(session_id(1)), "0" * 32, T0, 1, 2, question, answer)
    home = a_home(tmp_path)
    record(home, [start(1), exchange, end(1)])
    shell = Shell(home.path, capsys)
    [[stored]] = agentobs.query("SELECT tool_use_id FROM tool_calls", home=home.path)
    assert stored.startswith("digest:")
    assert shell("score", "story", "correct", "1", "--tool-call", "adas-call").code == 0
    assert shell("score", "story", "correct", "2", "--tool-call", stored).code == 0
    assert scores(home.path, "value, tool_use_id") == [(1.0, stored), (2.0, stored)]
    ended = shell("score", "story", "correct", "1", "--tool-call", f"digest:{'0' * 24}")
    assert ended.code == 1


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"name": "not a name", "value": 1}, "is not the name of a score"),
    ({"name": "x", "value": "good"}, "which may contain content"),
    ({"name": "x", "value": float("nan")}, "not a finite number"),
    ({"name": "x", "value": 10**400}, "not a finite number"),
    ({"name": "x", "value": 1, "turn": 0}, "there is no turn 0"),
    ({"name": "x", "value": 1, "turn": 1, "tool_use_id": "t"}, "both a turn and a tool call"),
    ({"name": "x", "value": 1, "comment": "x" * 10_001}, "10,001 characters"),
    ({"name": "x", "value": 1, "session": "missing"}, "no session has the ID 'missing'"),
]


@pytest.mark.slow
def test_an_invalid_score_is_an_error_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid score raises one error that describes the problem, and nothing is recorded."""
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_HOME", str(home))
    with recording(home), agentobs.session("judged"):
        for arguments, message in INVALID:
            with pytest.raises(UsageError, match=message):
                agentobs.score(**arguments)
    assert scores(home, "name") == []


def test_outside_a_session_nothing_is_recorded(tmp_path: Path) -> None:
    """Without a session, a valid score is ignored."""
    home = tmp_path / "home"
    with recording(home):
        agentobs.score("correct", 1)
        agent("later")
    assert scores(home, "name") == []


@pytest.mark.slow
def test_a_score_may_arrive_after_the_end_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the session, another process, and the command line can score an ended session.

    A rebuilt store has the same rows, and nothing counts as damaged or as lost.
    """
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_HOME", str(home))
    with recording(home):
        session_id = agent("judged")
        agentobs.score("in_process", 1, session=session_id)
    agentobs.score("afterwards", 2, session=session_id, turn=2, comment=COMMENT)
    rows = scores(home, "session_id, name, lane, turn, session_sequence IS NULL")
    assert rows == [
        (session_id, "in_process", None, None, False),
        (session_id, "afterwards", "main", 2, True),
    ]
    [[status, dropped, incomplete]] = queries.query(
        "SELECT status, dropped, incomplete FROM sessions", home=home
    )
    assert (status, dropped, incomplete) == ("completed", 0, False)
    place = existing_home(home)
    ingest(place)
    before = scores(home, "* EXCLUDE (segment_id)")
    assert verify(place).findings == []
    place.database.unlink()
    place.manifest.unlink()
    ingest(place)
    assert scores(home, "* EXCLUDE (segment_id)") == before


@pytest.mark.slow
def test_the_command_scores_a_session_a_turn_and_a_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`agentobs score` accepts numbers, booleans and words, and `show` prints the last values with their comments."""
    home = tmp_path / "home"
    with recording(home):
        session_id = agent("judged")
    shell = Shell(home, capsys)
    assert (
        shell("score", "judged", "correct", "0.25").out
        == f"scored {session_id}  session: correct = 0.25\n"
    )
    assert shell("score", "judged", "correct", "0.75", "--comment", COMMENT).code == 0
    assert shell("score", "judged", "polite", "false", "--turn", "2").code == 0
    assert shell("score", "judged", "choice", "good", "--tool-call", "toolu_1").code == 0
    assert scores(home, "name, value_type, value, label, lane, turn, tool_use_id, source") == [
        ("correct", "number", 0.25, None, None, None, None, "command"),
        ("correct", "number", 0.75, None, None, None, None, "command"),
        ("polite", "boolean", 0.0, None, "main", 2, None, "command"),
        ("choice", "label", None, "good", "main", None, "toolu_1", "command"),
    ]
    [[interaction]] = queries.query("SELECT interaction_id FROM interaction_starts", home=home)
    assert [row[0] for row in scores(home, "interaction_id")] == [
        None,
        None,
        interaction,
        interaction,
    ]
    shown = [line.split() for line in shell("show", "judged").out.splitlines()]
    [correct] = [line for line in shown if line[:1] == ["correct"]]
    assert correct[1:4] == ["0.75", "session", "2"]
    assert " ".join(correct).endswith(COMMENT)
    [polite] = [line for line in shown if line[:1] == ["polite"]]
    assert polite[1:5] == ["no", "main,", "turn", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody", "correct", "1"), "no session with that ID or name"),
        (("judged", "correct", "two words"), "is not the value of a score"),
        (("judged", "correct", "inf"), "is not a finite number"),
        (("judged", "not a name", "1"), "is not the name of a score"),
        (("judged", "correct", "1", "--turn", "9"), "the session has no turn 9"),
        (
            ("judged", "correct", "1", "--tool-call", "toolu_9"),
            "the session has no tool call toolu_9",
        ),
        (("judged", "correct", "1", "--lane", "main"), "--lane needs --turn or --tool-call"),
    ],
)
def test_bad_input_of_the_command_is_one_error(
    judged: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Each error is one line, the exit code is 1, and nothing is recorded."""
    ended = Shell(judged, capsys)("score", *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err
    assert scores(judged, "name") == []


def test_a_comment_is_not_written_if_content_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value of a score is recorded without content; the text of its comment is nowhere."""
    home = tmp_path / "home"
    with recording(home):
        agent("judged", lambda: agentobs.score("correct", 1, comment=COMMENT), content="off")
    assert Shell(home, capsys)("score", "judged", "late", "2", "--comment", COMMENT).code == 0
    assert scores(home, "name, value") == [("correct", 1.0), ("late", 2.0)]
    assert not [
        path for path in home.rglob("*") if path.is_file() and b"canary" in path.read_bytes()
    ]


@pytest.mark.slow
def test_sealed_content_has_sealed_comments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a content key, the comment of a later score is also encrypted, and shown to the holder of the key."""
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", "ab" * 32)
    with recording(home):
        agent("judged")
    shell = Shell(home, capsys)
    assert shell("score", "judged", "late", "2", "--comment", COMMENT).code == 0
    assert not [
        path for path in home.rglob("*") if path.is_file() and b"canary" in path.read_bytes()
    ]
    assert COMMENT in shell("show", "judged").out
    monkeypatch.delenv("AGENTOBS_CONTENT_KEY")
    assert COMMENT not in shell("show", "judged").out


@pytest.mark.slow
def test_sessions_are_chosen_by_their_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--where` compares the last values of scores, and numbers of sessions; conditions are joined by `and`."""
    home = tmp_path / "home"
    with recording(home):
        bad = agent("bad", lambda: agentobs.score("correct", 0.1))
        good = agent("good", lambda: agentobs.score("correct", True))
        plain = agent("plain")
    shell = Shell(home, capsys)
    shell("score", bad, "grade", "F", "--turn", "1")

    def matching(where: str) -> set[str]:
        ended = shell("sessions", "--json", "--where", where)
        assert ended.code == 0, ended.err
        return {json.loads(line)["name"] for line in ended.out.splitlines()}

    with shared_store(home):
        assert matching("score.correct < 0.5") == {"bad"}
        assert matching("score.correct >= 0.1") == {"bad", "good"}
        assert matching("score.correct = true") == {"good"}
        assert matching("score.correct = 0.1") == {"bad"}
        assert matching("score.grade = F and turns > 1 and status = completed") == {"bad"}
        assert matching('score.grade != "A"') == {"bad"}
        assert matching("turns >= 2") == {"bad", "good", "plain"}
        assert matching("turns > 2") == set()
    shell("score", bad, "correct", "0.9")
    assert matching("score.correct < 0.5") == set()
    assert good != plain
    for where, message in {
        "score.correct": "expected a condition",
        "score.correct < 0.5 or turns > 1": "expected `and`",
        "score.grade < F": "needs a number",
        "money > 3": "there is no field 'money'",
        "turns = many": "turns is a number",
        "status = 3": "status is a word",
        "": "expected a condition",
    }.items():
        ended = shell("sessions", "--where", where)
        assert (ended.code, ended.out) == (1, "")
        assert message in ended.err


@pytest.mark.slow
def test_freeze_selects_sessions_by_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`freeze --where` writes a fixture for each matching session; no match, and two selections, are errors."""
    recorded(tmp_path, lambda url: Agent(url).answer("How is it?"), answers())
    recorded(tmp_path, lambda url: Agent(url).answer("And now?"), answers())
    home = tmp_path / "home"
    shell = Shell(home, capsys)
    [[first], [_]] = queries.query("SELECT session_id FROM sessions ORDER BY started_ns", home=home)
    assert shell("score", first, "correct", "0.2").code == 0
    options = ("-o", str(tmp_path / "chosen"), "--no-check")
    ended = shell("freeze", "--where", "score.correct < 0.5", *options)
    assert ended.code == 0, ended.err
    assert [line.split()[1] for line in ended.out.splitlines() if line.startswith("froze")] == [
        first
    ]
    none = shell("freeze", "--where", "score.correct > 0.5", *options)
    assert (none.code, "no sessions that have ended match" in none.err) == (1, True)
    both = shell("freeze", first, "--where", "score.correct < 0.5", *options)
    assert (both.code, "specify a SESSION, --last-failed or --where" in both.err) == (1, True)


@pytest.mark.slow
def test_scores_are_exported_as_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live export and a later export send each score once, with the names of the GenAI conventions and no comment."""
    home = tmp_path / "home"
    with Collector() as live:
        backend = otlp.standard(live.endpoint)
        with recording(home, backend):
            session_id = agent("judged", lambda: agentobs.score("correct", 0.5, comment=COMMENT))
            assert backend.flush(20)
        backend.close()
        [sent] = [each for each in live.logs() if each[0] == "gen_ai.evaluation.result"]
    assert sent[1]["gen_ai.evaluation.name"] == "correct"
    assert sent[1]["gen_ai.evaluation.score.value"] == 0.5
    assert sent[1]["gen_ai.conversation.id"] == session_id
    assert "canary" not in str(sent)
    place = existing_home(home)
    with Collector() as later:
        send(place, later, resend=True)
        assert [e for e, *_ in later.logs()].count("gen_ai.evaluation.result") == 1
        shell = Shell(home, capsys)
        shell("score", session_id, "polite", "true", "--turn", "1")
        shell("score", session_id, "choice", "good", "--tool-call", "toolu_1")
    with Collector() as fresh:
        send(place, fresh, name="fresh", resend=True)
        found = [attributes for name, attributes, _ in fresh.logs() if name.startswith("gen_ai.")]
    assert [each["gen_ai.evaluation.name"] for each in found] == ["correct", "polite", "choice"]
    assert [each.get("gen_ai.evaluation.score.label") for each in found] == [None, "true", "good"]
    assert found[1]["agentobs.turn"] == 1
    assert found[2]["gen_ai.tool.call.id"] == "toolu_1"


@pytest.mark.slow
def test_a_late_score_is_sent_by_the_next_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a session was exported completely, the next export to the same collector sends only the new score."""
    home = tmp_path / "home"
    with recording(home):
        session_id = agent("judged")
    place = existing_home(home)
    with Collector() as collector:
        send(place, collector)
        spans, logs = len(collector.spans()), len(collector.logs())
        assert send(place, collector).already_sent == 1
        Shell(home, capsys)("score", session_id, "correct", "0.5")
        report = send(place, collector)
        assert (report.accepted["traces"], report.accepted["logs"]) == (0, 1)
        assert len(collector.spans()) == spans
        assert [name for name, *_ in collector.logs()[logs:]] == ["gen_ai.evaluation.result"]


@pytest.mark.slow
def test_a_bundle_contains_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A session that was packed into a bundle and imported elsewhere has its scores, with content also the comments."""
    home = tmp_path / "home"
    with recording(home):
        agent("judged", lambda: agentobs.score("correct", 0.5))
    shell = Shell(home, capsys)
    shell("score", "judged", "late", "1", "--comment", COMMENT)
    assert shell("bundle", "judged", "-o", str(tmp_path / "x.bundle"), "--with-content").code == 0
    other = Shell(tmp_path / "other", capsys)
    imported = other("import", "bundle", str(tmp_path / "x.bundle"))
    assert imported.code == 0, imported.err
    assert scores(tmp_path / "other", "name, value") == [("correct", 0.5), ("late", 1.0)]
    assert COMMENT in other("show", "judged").out


def test_an_agent_that_scores_itself_can_be_replayed(tmp_path: Path) -> None:
    """A replay runs the calls of `score`, `title` and `record_git`, and records nothing."""

    class Judge(Agent):
        def result(self, block: Any) -> dict[str, Any]:
            agentobs.score("calls", 1, tool_use_id=block.id, comment=COMMENT)
            agentobs.title("canary title")
            agentobs.record_git()
            return super().result(block)

    recording_of_it = recorded(tmp_path, lambda url: Judge(url).answer("How is it?"), answers())
    assert len(scores(tmp_path / "home", "name")) == 3
    with Replayer(frozen(tmp_path, recording_of_it)) as replay:
        assert Judge().answer("How is it?") == "Oslo is wet."
        replay.check()
    assert len(scores(tmp_path / "home", "name")) == 3


@pytest.mark.slow
def test_scores_are_pruned_with_their_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pruning a session deletes its scores and their comments from all segments; content-only pruning keeps values."""
    home = tmp_path / "home"
    with recording(home):
        agent("kept", lambda: agentobs.score("correct", 1, comment=COMMENT))
        agent("gone", lambda: agentobs.score("correct", 2, comment=COMMENT))
    shell = Shell(home, capsys)
    shell("score", "gone", "late", "3", "--comment", COMMENT)
    assert shell("prune", "--session", "gone").code == 0
    assert scores(home, "name, value") == [("correct", 1.0)]
    assert shell("prune", "--session", "kept", "--content-only").code == 0
    assert scores(home, "name, value") == [("correct", 1.0)]
    place = existing_home(home)
    assert verify(place).findings == []
    assert COMMENT not in shell("show", "kept").out


@pytest.mark.slow
def test_the_page_of_a_session_shows_its_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page lists the last value of each score, what it is about, and its comment."""
    home = tmp_path / "home"
    with recording(home):
        session_id = agent("judged", lambda: agentobs.score("correct", 0.8, comment=COMMENT))
    Shell(home, capsys)("score", session_id, "polite", "true", "--turn", "1")
    with serving(existing_home(home)) as client:
        page = client.get(f"/sessions/{session_id}?tab=overview").words
    assert "Scores" in page
    assert "correct 0.8 session 1" in page
    assert COMMENT in page
    assert "polite yes main, turn 1" in page


@pytest.mark.slow
def test_scores_are_archived_with_their_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session whose rows are in an archive can be scored; both its earlier and its later scores can be read."""
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_HOME", str(home))
    with recording(home):
        session_id = agent("judged", lambda: agentobs.score("correct", 1))
    place = existing_home(home)
    monkeypatch.setenv("AGENTOBS_ARCHIVE_BYTES", "1")
    monkeypatch.setattr("agentobs.store.duckdb.archives._month_ns", lambda _: 2**62)
    ingest(place)
    assert list((home / "archive").iterdir())
    agentobs.score("correct", 2, session=session_id)
    ingest(place)
    assert scores(home, "name, value") == [("correct", 1.0), ("correct", 2.0)]
    assert scores(home, "name, value, given", "latest_scores") == [("correct", 2.0, 2)]
    with open_store(place) as store:
        assert [row[0] for row in store.rows("internal/scores_named", name="correct").rows] == [
            session_id
        ]


@pytest.mark.slow
@pytest.mark.skipif(not AESGCM_INSTALLED, reason="the extra `sealed` is not installed")
def test_texts_about_encrypted_sessions_need_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the key, a comment or a title would be readable next to encrypted content; a number needs no key."""
    home = tmp_path / "home"
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", "5a" * 32)
    with recording(home):
        agent("sealed")
    shell = Shell(home, capsys)
    assert shell("score", "sealed", "polite", "true", "--comment", COMMENT).code == 0
    monkeypatch.delenv("AGENTOBS_CONTENT_KEY")
    for run in (
        ("score", "sealed", "late", "1", "--comment", COMMENT),
        ("title", "sealed", COMMENT),
    ):
        refused = shell(*run)
        assert refused.code == 1
        assert "AGENTOBS_CONTENT_KEY" in refused.err
    assert shell("score", "sealed", "plain", "1").code == 0
    assert scores(home, "name") == [("polite",), ("plain",)]
    assert b"canary" not in b"".join(
        path.read_bytes() for path in home.rglob("*") if path.is_file() and path.suffix != ".zst"
    )

"""Titles of sessions, and the search in titles and in all texts."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.errors import UsageError
from agentobs.recording.journal.home import existing_home
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.analysis.session_search import SessionTexts
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.session_texts import prompt_title
from agentobs.store.text_index import NAME
from exporters import otlp
from tests import queries
from tests.cli.test_commands import Shell
from tests.cli.test_scores import agent
from tests.dashboards.live_app import serving
from tests.exporters.collector import Collector
from tests.exporters.recount import folder
from tests.exporters.sample_agents import recording
from tests.replay.agents import Agent, answers, recorded
from tests.shared_stores import shared_store
from tests.store.recordings import T0, a_home, end, record, session_id, start

TRANSCRIPTS = folder()


def listed(shell: Shell, *arguments: str) -> dict[str, Any]:
    """Return the titles in the list of sessions, by the name of the session."""
    ended = shell("sessions", "--json", *arguments)
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in ended.out.splitlines()]
    return {row["name"]: row["title"] for row in rows}


def files_with(home: Path, text: str) -> list[str]:
    """Return the names of the files of a home that contain a text."""
    paths = (path for path in home.rglob("*") if path.is_file())
    return sorted(path.name for path in paths if text.encode() in path.read_bytes())


@pytest.fixture(scope="module")
def home_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three sessions: one titled by its program, one by its prompt, one without content."""
    home = tmp_path_factory.mktemp("titles") / "home"
    with recording(home):
        agent("titled", title="  canary\n title ")
        agent("prompted")
        agent("silent", content="off", title="canary silent")
    ingest(existing_home(home))  # once for all copies
    return home


@pytest.fixture
def home(home_once: Path, tmp_path: Path) -> Path:
    """A copy of the home, which a test may change."""
    return Path(shutil.copytree(home_once, tmp_path / "home"))


@pytest.mark.slow
def test_a_title_is_what_the_program_sets_or_the_first_prompt(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sessions` and `show` print the title; a session without content has none, whatever its program sets."""
    shell = Shell(home, capsys)
    assert listed(shell) == {"titled": "canary title", "prompted": "Hello", "silent": None}
    assert "canary title" in shell("sessions").out
    shown = [" ".join(line.split()) for line in shell("show", "titled").out.splitlines()]
    assert "title canary title" in shown
    assert not files_with(home, "canary silent")
    assert not files_with(home / "segments", "canary silent")


def test_a_session_that_starts_with_a_tool_result_has_the_first_prompt_as_its_title(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If no request ends with a prompt, the title is the first text of the user."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"}
    messages = [
        {"role": "user", "content": "Add 2 and 2"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    body = json.dumps({"model": "claude-sonnet-5", "max_tokens": 9, "messages": messages}).encode()
    question = Question("POST", "/v1/messages", {}, body)
    answer = Answer(200, {}, (Chunk(b"{}", 1),), "complete")
    exchange = ModelExchange(Place(session_id(1)), "0" * 32, T0, 1, 2, question, answer)
    home = a_home(tmp_path)
    record(home, [start(1), exchange, end(1)])
    ingest(home)
    assert listed(Shell(home.path, capsys)) == {"story": "Add 2 and 2"}


def exchange(number: int, method: str, path: str, body: Any, answer: bytes) -> ModelExchange:
    sent = b"" if body is None else json.dumps(body).encode()
    return ModelExchange(
        Place(session_id(1)),
        f"{number:032x}",
        T0 + number,
        1,
        2,
        Question(method, path, {}, sent),
        Answer(200, {}, (Chunk(answer, 1),), "complete"),
    )


def message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def of_batch() -> list[ModelExchange]:
    """Return the requests of a program that creates a batch and fetches its results."""
    requests = [
        {"custom_id": str(number), "params": {"messages": [message(f"canary question {number}")]}}
        for number in range(2)
    ]
    said = {"role": "assistant", "content": [{"type": "text", "text": "canary answer"}]}
    result = {"custom_id": "0", "result": {"type": "succeeded", "message": said}}
    path = "/v1/messages/batches"
    return [
        exchange(1, "POST", path, {"requests": requests}, b'{"id": "msgbatch_1"}'),
        exchange(2, "GET", f"{path}/msgbatch_1/results", None, json.dumps(result).encode()),
    ]


def of_managed_agent() -> list[ModelExchange]:
    """Return the requests of a program that creates an agent, sends it a prompt, and lists its events."""
    path = "/v1/sessions/sesn_1/events"
    prompt = {"type": "user.message", "content": [{"type": "text", "text": "canary question 0"}]}
    events = [
        {"id": "sevt_1", "type": "agent.tool_use", "name": "look", "input": {"at": "canary input"}},
        {
            "id": "sevt_2",
            "type": "agent.tool_result",
            "tool_use_id": "sevt_1",
            "content": [{"type": "text", "text": "canary result"}],
        },
        {
            "id": "sevt_3",
            "type": "agent.message",
            "content": [{"type": "text", "text": "canary answer"}],
        },
    ]
    created = [
        exchange(number, "POST", f"/v1/{name}", {"name": "x"}, b"{}")
        for number, name in enumerate(("agents", "environments", "vaults", "sessions"), 1)
    ]
    return [
        *created,
        exchange(5, "POST", path, {"events": [prompt]}, b'{"data": []}'),
        exchange(6, "GET", path, None, json.dumps({"data": events}).encode()),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [of_batch(), of_managed_agent()], ids=["batch", "managed"])
def test_batches_and_managed_agents_have_titles_and_are_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exchanges: list[ModelExchange]
) -> None:
    """The title is the first prompt that a batch or an agent gets; a search finds prompts, responses and tool data."""
    home = a_home(tmp_path)
    record(home, [start(1), *exchanges, end(1)])
    shell = Shell(home.path, capsys)
    with shared_store(home.path):
        assert listed(shell) == {"story": "canary question 0"}
        found = {
            text: listed(shell, "--all-text", "--search", text) != {}
            for text in (
                "question 0",
                "question 1",
                "answer",
                "canary input",
                "canary result",
                "more",
            )
        }
    is_batch = len(exchanges) == 2
    assert found == {
        "question 0": True,
        "question 1": is_batch,
        "answer": True,
        "canary input": not is_batch,
        "canary result": not is_batch,
        "more": False,
    }


def hostile_results() -> list[ModelExchange]:
    """Return requests and a response with results of tools whose content is not text and not a list."""
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": 5}
    prompt = {"role": "user", "content": [result, {"type": "text", "text": "canary prompt"}]}
    cloud = {"toolResult": {"toolUseId": "tooluse_1", "content": [5]}}
    event = {"id": "sevt_1", "type": "agent.tool_result", "tool_use_id": "sevt_0", "content": 5}
    listed_events = json.dumps({"data": [event]}).encode()
    return [
        exchange(1, "POST", "/v1/messages", {"model": "m", "messages": [prompt]}, b"{}"),
        exchange(
            2,
            "POST",
            "/model/m/converse",
            {"messages": [{"role": "user", "content": [cloud]}]},
            b"{}",
        ),
        exchange(3, "GET", "/v1/sessions/sesn_1/events", None, listed_events),
    ]


@pytest.mark.slow
def test_results_of_another_type_are_recorded_and_skipped_by_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The provider would reject them, but nothing is lost, and lists and searches work."""
    home = a_home(tmp_path)
    record(home, [start(1), *hostile_results(), end(1)])
    ingest(home)
    with connect(home) as database:
        assert database.execute("SELECT count(*) FROM attempts").fetchall() == [(3,)]
    shell = Shell(home.path, capsys)
    assert listed(shell) == {"story": "canary prompt"}
    assert listed(shell, "--all-text", "--search", "canary prompt") == {"story": "canary prompt"}


@pytest.mark.slow
def test_the_last_title_applies(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person or a program can change the title of an ended session; the facts contain only digests."""
    shell = Shell(home, capsys)
    assert listed(shell)["prompted"] == "Hello"
    ended = shell("title", "prompted", "canary  first")
    assert (ended.code, ended.out.startswith("titled ")) == (0, True)
    assert listed(shell)["prompted"] == "canary first"
    assert shell("title", "prompted", "canary second").code == 0
    assert listed(shell)["prompted"] == "canary second"
    rows = queries.query("SELECT title, source FROM session_titles ORDER BY at_ns", home=home)
    assert [source for _, source in rows] == ["program", "command", "command"]
    assert all(title.startswith("digest:") for title, _ in rows)
    assert not [name for name in files_with(home, "canary") if name.endswith((".facts", ".duckdb"))]
    ingest(existing_home(home))
    assert listed(shell)["prompted"] == "canary second"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prompted", "  "), "the title is empty"),
        (("nobody", "x"), "no session with that ID or name"),
        (("silent", "x"), "was recorded without content"),
    ],
)
def test_an_invalid_title_is_one_error(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Each error is one line, and the exit code is 1."""
    ended = Shell(home, capsys)("title", *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err


@pytest.mark.slow
def test_titles_in_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`agentobs.title` sets the title of the caller's session or of an ended one; each call of a decorated function
    has the title of the decorator; an empty title is an error.
    """
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    with recording(tmp_path / "home"):
        changed = agent("changed", lambda: agentobs.title("second"), title="first")
        later = agent("later")
        agentobs.title("in process", session=later)

        @agentobs.session("decorated", title="of the function")
        def work() -> None:
            """Do nothing."""

        work()
        with pytest.raises(UsageError, match="the title is empty"):
            agentobs.session("empty", title=" ")
    agentobs.title("x" * 300, session=later)
    with open_store(tmp_path / "home") as store:
        ids = [row[0] for row in store.rows("sessions").rows]
        titles = SessionTexts(store).titles(ids)
        names = {row["session_id"]: row["name"] for row in store.rows("sessions").dicts()}
    assert titles[changed] == "second"
    assert titles[later] == "x" * 199 + "\u2026"
    assert [titles[i] for i in ids if names[i] == "decorated"] == ["of the function"]


@pytest.mark.slow
def test_titles_are_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a live export, nor tables, nor a report, nor a bundle without content contains a title."""
    home, out = tmp_path / "home", tmp_path / "out"
    out.mkdir()
    with Collector() as collector:
        backend = otlp.standard(collector.endpoint)
        with recording(home, backend):
            agent("titled", title="canary title")
            assert backend.flush(20)
        backend.close()
        sent = [*collector.spans(), *collector.logs()]
    assert sent
    assert "canary" not in str(sent)
    assert not [name for name, *_ in collector.logs() if "title" in name]
    shell = Shell(home, capsys)
    assert shell("report", "titled", "-o", str(out / "x.html")).code == 0
    assert shell("bundle", "titled", "-o", str(out / "x.bundle")).code == 0
    assert shell("export", "rows", "session_titles", "-o", str(out / "x.csv")).code == 0
    assert not files_with(out, "canary")


@pytest.mark.slow
def test_a_search_finds_titles_and_with_all_text_also_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search ignores case. With --all-text it covers prompts, responses, and inputs and results of tools, but not
    system prompts and declarations of tools. A second search finds a session that was recorded since the first.
    """
    recorded(tmp_path, lambda url: Agent(url).answer("How is it, canary?"), answers())
    shell = Shell(tmp_path / "home", capsys)

    def found(text: str, *options: str) -> int:
        ended = shell("sessions", "--json", "--search", text, *options)
        assert ended.code == 0, ended.err
        return len(ended.out.splitlines())

    with shared_store(tmp_path / "home"):
        assert found("IT, Canary") == 1
        assert found("oslo is wet") == 0
        for text in ("oslo is WET", "Looking.", "12:00", '"city": "Rome"', "how is it", "clock"):
            assert found(text, "--all-text") == 1, text
        for text in ("Be brief", "input_schema", "nowhere"):
            assert found(text, "--all-text") == 0, text
    recorded(tmp_path, lambda url: Agent(url).answer("And now, canary?"), answers())
    assert found("canary") == 2
    assert found("and now", "--all-text") == 1
    assert found("oslo is wet", "--all-text", "--where", "turns > 99") == 0
    assert (tmp_path / "home" / NAME).stat().st_mode & 0o777 == 0o600


def test_bad_searches_are_one_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty text, --all-text alone, and a damaged index are errors; a damaged index does not hide titles."""
    shell = Shell(home, capsys)
    for arguments, message in (
        (("--search", " "), "the text to search for is empty"),
        (("--all-text",), "--all-text needs --search"),
    ):
        ended = shell("sessions", *arguments)
        assert (ended.code, ended.out) == (1, "")
        assert message in ended.err
    (home / NAME).write_bytes(b"not a database, but longer than its header" * 100)
    ended = shell("sessions", "--search", "canary")
    assert (ended.code, "cannot be used" in ended.err, "Delete the file" in ended.err) == (
        1,
        True,
        True,
    )
    assert listed(shell)["titled"] == "canary title"


@pytest.mark.slow
def test_the_search_skips_sessions_without_content(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session without content is in no search result, and its texts are in no file."""
    shell = Shell(home, capsys)
    assert set(listed(shell, "--search", "nothing in box", "--all-text")) == {"titled", "prompted"}
    with sqlite3.connect(home / NAME) as index:
        sessions = {row[0] for row in index.execute("SELECT session_id FROM texts")}
    [[silent]] = queries.query("SELECT session_id FROM sessions WHERE name = 'silent'", home=home)
    assert len(sessions) == 2
    assert silent not in sessions


@pytest.mark.slow
@pytest.mark.parametrize("content_only", [True, False])
def test_pruning_deletes_titles_and_texts(
    home: Path, capsys: pytest.CaptureFixture[str], content_only: bool
) -> None:
    """Pruning a session, or its content, deletes its title and its texts from the index and overwrites their bytes."""
    shell = Shell(home, capsys)
    assert set(listed(shell, "--search", "canary title")) == {"titled"}
    assert set(listed(shell, "--search", "nothing in box", "--all-text")) == {"titled", "prompted"}
    assert NAME in files_with(home, "canary title")
    ended = shell("prune", "--session", "titled", *(["--content-only"] if content_only else []))
    assert ended.code == 0, ended.err
    assert not files_with(home, "canary title")
    assert set(listed(shell, "--search", "nothing in box", "--all-text")) == {"prompted"}
    assert listed(shell).get("titled") is None
    assert not files_with(home, "canary title")


@pytest.mark.slow
def test_texts_of_sealed_content_are_sealed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a content key, the index contains only ciphertext; without the key, a search prints a note."""
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", "ab" * 32)
    home = tmp_path / "home"
    with recording(home):
        agent("titled", title="canary title")
    shell = Shell(home, capsys)
    assert listed(shell, "--search", "CANARY") == {"titled": "canary title"}
    assert listed(shell, "--search", "nothing in box", "--all-text") == {"titled": "canary title"}
    assert not files_with(home, "canary title")
    assert not files_with(home, "nothing in box")
    monkeypatch.delenv("AGENTOBS_CONTENT_KEY")
    ended = shell("sessions", "--json", "--search", "nothing in box", "--all-text")
    assert (ended.code, ended.out) == (0, "")
    assert "the content of 1 sessions cannot be read" in ended.err
    assert listed(shell) == {"titled": None}


def test_a_read_only_home_has_titles(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the index cannot be written, titles are read from the content."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("agentobs.store.text_index.create", refuse)
    assert listed(Shell(home, capsys))["titled"] == "canary title"
    assert not (home / NAME).exists()


@pytest.mark.slow
def test_pages_show_and_search_titles(home: Path) -> None:
    """The list shows titles and finds sessions by them; a click also searches all texts. A session's page has its
    title.
    """
    [[titled]] = queries.query("SELECT session_id FROM sessions WHERE name = 'titled'", home=home)
    with serving(existing_home(home)) as client:
        page = client.get("/").words
        assert "canary title" in page
        assert "Hello" in page
        found = client.get("/?q=CANARY+title")
        assert found.links("/sessions/") == [f"/sessions/{titled}"]
        assert client.get("/?q=nothing+in+box").links("/sessions/") == []
        assert len(client.get("/?q=nothing+in+box&all_text=1").links("/sessions/")) == 2
        assert "canary title" in client.get(f"/sessions/{titled}").words


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("fix  the\n tests", "fix the tests"),
        ("<system-reminder>today</system-reminder>fix it", "fix it"),
        ("<ide_opened_file>x.py</ide_opened_file>\nwhy?", "why?"),
        (
            "<command-message>review</command-message><command-name>/review</command-name>"
            "<command-args>main</command-args>",
            "/review main",
        ),
        ("<command-name>/clear</command-name>", "/clear"),
        ("<b>bold</b>", "<b>bold</b>"),
        ("a < b and c > d", "a < b and c > d"),
        ("x" * 300, "x" * 199 + "\u2026"),
    ],
)
def test_a_title_is_one_line_of_the_prompt(prompt: str, title: str) -> None:
    """A title leaves out what a client added to the prompt, unless nothing else is in it."""
    assert prompt_title(prompt) == title


@pytest.mark.slow
@pytest.mark.skipif(
    TRANSCRIPTS is None, reason="no transcripts: set AGENTOBS_TRANSCRIPTS to their folder"
)
def test_imported_logs_have_different_titles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All imported logs of Claude Code have a title, and no two have the same."""
    shell = Shell(tmp_path / "home", capsys)
    assert shell("import", "claude-code", str(TRANSCRIPTS)).code == 0
    ended = shell("sessions", "--json", "--limit", "100")
    titles = [json.loads(line)["title"] for line in ended.out.splitlines()]
    assert len(titles) == 36
    assert all(titles)
    assert len(set(titles)) == 36

"""Names and reasons that are sentences are shown as text on this machine, and as digests everywhere else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.recording.journal.home import existing_home
from agentobs.recording.options import Options
from agentobs.recording.session import start_recorder
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.backend import WrittenFact
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.label_texts import LabelTexts
from replay import DivergenceError, Replayer, load
from tests.cli.test_commands import Shell
from tests.provider_script import script, streamed, text
from tests.replay.agents import KEY, MODEL
from tests.shared_stores import shared_store

NAME = "Refund agent, order 7: über alles"
REASON = "the customer was not refunded"
SEAL = bytes(range(32)).hex()


def refund(url: str, name: str = NAME, reason: str | None = REASON, **options: Any) -> None:
    """Run a session that completes, or that fails with a reason."""

    @agentobs.session(name, **options)
    def agent() -> None:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
        messages: Any = [{"role": "user", "content": "Refund order 7."}]
        with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
            stream.until_done()
        if reason is not None:
            agentobs.fail(reason)

    agent()


def recorded(home: Path, *sessions: dict[str, Any], **options: Any) -> list[WrittenFact]:
    """Record sessions, and return the facts that a backend received."""
    result: list[WrittenFact] = []
    agentobs.stop_recorder()
    answers = [streamed(text("Done.")) for _ in sessions]
    with ServedProvider(script(*answers), ServeOptions(match="order")) as provider:
        backend = agentobs.receiving(["*"], result.append)
        assert start_recorder(str(home), Options(backends=(backend,), **options)) is not None
        try:
            for each in sessions:
                refund(provider.url, **each)
        finally:
            assert agentobs.stop_recorder()
    return result


@pytest.fixture(scope="module")
def home_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a session whose name and reason are sentences."""
    home = tmp_path_factory.mktemp("texts") / "home"
    recorded(home, {}, {"name": "plain", "reason": "no-refund"})
    return home


@pytest.fixture(scope="module")
def ingested(home_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ingested copy of the home, whose segments are compressed."""
    home = Path(shutil.copytree(home_once, tmp_path_factory.mktemp("ingested") / "home"))
    ingest(existing_home(home))
    assert list(home.rglob("*.content.zst"))
    return home


@pytest.fixture(scope="module")
def opened(ingested: Path) -> Iterator[Path]:
    """The ingested home with an open store, for tests that only read it."""
    with shared_store(ingested):
        yield ingested


@pytest.fixture
def home(ingested: Path, tmp_path: Path) -> Path:
    """A copy of the ingested home, which a test may change."""
    return Path(shutil.copytree(ingested, tmp_path / "home"))


@pytest.fixture
def shell(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(home, capsys)


def digest_of(home: Path, column: str) -> str:
    # The other session has the reason `no-refund`, which is a digest as well.
    sql = (
        f"SELECT {column} FROM sessions WHERE starts_with({column}, 'd') AND starts_with(name, 'd')"
    )
    with connect(home) as store:
        [(found,)] = store.execute(sql).fetchall()
    return str(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("sessions",), ("show", NAME)], ids=" ".join)
def test_the_first_command_shows_the_texts(
    home_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """The first command after a recording shows the original texts."""
    home = Path(shutil.copytree(home_once, tmp_path / "home"))
    shown = Shell(home, capsys)(*command).out
    assert NAME in shown
    assert REASON in shown
    assert "digest:" not in shown


@pytest.mark.slow
def test_commands_show_the_texts(opened: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands show the original texts, also of compressed segments."""
    shell = Shell(opened, capsys)
    for result in (
        shell("sessions").out,
        shell("sessions", "--failed").out,
        shell("sessions", "--csv").out,
        shell("show", NAME).out,
    ):
        assert NAME in result
        assert REASON in result
        assert "digest:" not in result
    assert f"declared:{REASON}" in shell("show", NAME, "--facts").out
    for result in (
        shell("diagnose", NAME).out,
        shell("cost", "--by", "session").out,
        shell("cost", "--by", "agent").out,
        shell("show", "no such name").err,
    ):
        assert NAME in result
    rows = [json.loads(line) for line in shell("sessions", "--json").out.splitlines()]
    assert {row["name"]: row["reason"] for row in rows} == {NAME: REASON, "plain": "no-refund"}


@pytest.mark.slow
def test_sessions_are_found_by_their_texts(home: Path, shell: Shell) -> None:
    """The original text can be used as a session name and as a query parameter; query results contain digests."""
    asked = "SELECT reason FROM sessions WHERE name = $name"
    result = shell("sql", asked, "--param", f"name={NAME}", "--json")
    assert json.loads(result.out) == {"reason": digest_of(home, "reason")}
    by_reason = "SELECT count(*) AS n FROM sessions WHERE reason = $why"
    assert json.loads(shell("sql", by_reason, "--param", f"why={REASON}", "--json").out) == {"n": 1}
    free = "SELECT $text AS text"
    assert json.loads(shell("sql", free, "--param", "text=two words", "--json").out) == {
        "text": "two words"
    }


@pytest.mark.slow
@pytest.mark.parametrize("which", [NAME, "--last-failed"])
def test_a_session_is_frozen_and_replayed(shell: Shell, tmp_path: Path, which: str) -> None:
    """A replay of unchanged code matches, a different reason diverges, and the fixture's folder has a safe name."""
    if which == "--last-failed":
        recorded(shell.home, {})
    frozen = shell("freeze", which)
    assert frozen.code == 0
    [folder] = (tmp_path / "fixtures").iterdir()
    assert folder.name == "Refund-agent-order-7-über-alles"
    fixture = load(folder)
    assert (fixture.name, fixture.header["reason"]) == (NAME, REASON)
    with Replayer(fixture) as replay:
        replay.run(refund, "http://127.0.0.1:9")
    with pytest.raises(DivergenceError) as caught, Replayer(load(folder)) as replay:
        replay.run(refund, "http://127.0.0.1:9", reason="the customer was refunded twice")
    [difference] = caught.value.divergence.differences
    assert (difference.path, difference.expected) == ("$.reason", REASON)


@pytest.mark.slow
def test_a_secret_in_a_reason_is_redacted_and_compared(shell: Shell, tmp_path: Path) -> None:
    """Reasons that differ only in a secret of the same kind are equal, because secrets are redacted."""
    tokens = ["ghp_" + "aB3dE6gH9j" * 3 + "kLm1Qx", "ghp_" + "Zy8xW5vU2t" * 3 + "sRq4Pn"]
    recorded(shell.home, {"reason": f"refused for {tokens[0]}"})
    assert shell("freeze", "--last-failed", "-o", str(tmp_path / "f")).code == 0
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert tokens[0].encode() not in path.read_bytes(), path
    with Replayer(load(tmp_path / "f")) as replay:
        replay.run(refund, "http://127.0.0.1:9", reason=f"refused for {tokens[1]}")
    assert "refused for [redacted:" in shell("sessions").out


@pytest.mark.slow
def test_the_texts_are_only_in_content_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The original texts are neither in the facts, nor the store, nor the facts of backends, nor exported files."""
    result = recorded(tmp_path / "home", {}, sync="always")
    assert result
    words = [NAME, REASON]
    assert not [each.fact for each in result if any(word in repr(each.fact) for word in words)]
    shell = Shell(tmp_path / "home", capsys)
    assert shell("export", "rows", "sessions", "-o", str(tmp_path / "rows.csv")).code == 0
    ingest(existing_home(tmp_path / "home"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".duckdb", ".csv"}
    for path in (path for path in files if ".content" not in path.name):
        for word in words:
            assert word.encode() not in path.read_bytes(), path
            assert json.dumps(word).encode() not in path.read_bytes(), path
    with connect(tmp_path / "home") as connection:
        tables = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
        for table in tables:
            rows = repr(connection.execute(f'SELECT * FROM "{table}"').fetchall())
            assert not [word for word in words if word in rows], table


@pytest.mark.slow
def test_without_content_the_digest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If content is off or was pruned, commands show the digest, and the session is still found by its name."""
    off, pruned = tmp_path / "off", tmp_path / "pruned"
    recorded(off, {"content": "off"})
    recorded(pruned, {})
    shell = Shell(pruned, capsys)
    assert NAME in shell("sessions").out
    assert shell("prune", "--session", NAME, "--content-only").code == 0
    for home in (off, pruned):
        result = shell("sessions", home=home).out
        assert NAME not in result
        assert REASON not in result
        assert result.count("digest:") == 2
        assert shell("show", NAME, home=home).code == 0
    for path in (path for path in off.rglob("*") if path.is_file()):
        assert REASON.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_encrypted_texts_need_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the content key, commands show the original texts; without the key, they show digests."""
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", SEAL)
    recorded(tmp_path / "home", {})
    shell = Shell(tmp_path / "home", capsys)
    assert NAME in shell("sessions").out
    for path in (path for path in (tmp_path / "home").rglob("*") if path.is_file()):
        assert REASON.encode() not in path.read_bytes(), path
    monkeypatch.delenv("AGENTOBS_CONTENT_KEY")
    result = shell("sessions").out
    assert NAME not in result
    assert result.count("digest:") == 2


@pytest.mark.slow
def test_reports_contain_the_texts_only_with_content(
    opened: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A report contains the original texts only if its author included content, so it can be shared otherwise."""
    shell = Shell(opened, capsys)
    for content in (False, True):
        path = tmp_path / f"{content}.html"
        extra = ["--with-content"] if content else []
        assert shell("report", NAME, "-o", str(path), "--light", *extra).code == 0
        assert (REASON in path.read_text()) is content
    assert NAME in shell("diff", NAME, "plain").out
    for content in (False, True):
        path = tmp_path / f"diff-{content}.html"
        extra = ["--content"] if content else []
        assert shell("diff", NAME, "plain", "--report", str(path), "--light", *extra).code == 0
        assert (NAME in path.read_text()) is content
    path = tmp_path / "range.html"
    assert shell("report", "--range", "..", "-o", str(path), "--light").code == 0
    assert REASON not in path.read_text()


def test_texts_are_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are looked up once, even if no text was found for them."""
    place = existing_home(home)
    with open_store(place) as store:
        texts = LabelTexts(store)
        reason, unknown = digest_of(home, "reason"), "digest:" + "0" * 24
        assert texts.texts_of([reason, unknown]) == {reason: REASON}
        monkeypatch.setattr(LabelTexts, "_read", None)
        assert texts.replace_in_rows([(1, f"declared:{reason}", {"a": [unknown]})]) == [
            (1, f"declared:{REASON}", {"a": [unknown]})
        ]


@pytest.mark.slow
def test_only_a_changed_reason_counts_as_a_fix(shell: Shell, tmp_path: Path) -> None:
    """Unchanged code fails for the same reason, even if the secret in the reason differs; fixed code does not."""
    tokens = ["ghp_" + "aB3dE6gH9j" * 3 + "kLm1Qx", "ghp_" + "Zy8xW5vU2t" * 3 + "sRq4Pn"]
    recorded(shell.home, {"reason": f"refused for {tokens[0]}"})
    assert shell("freeze", "--last-failed", "-o", str(tmp_path / "f")).code == 0
    found = []
    for reason in (f"refused for {tokens[1]}", None):
        with Replayer(load(tmp_path / "f")) as replay:
            step = replay.until_change(refund, "http://127.0.0.1:9", reason=reason, turn=1)
        found.append(step.differs)
    assert found == [False, True]

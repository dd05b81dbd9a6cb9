"""Bundles: an import results in the same data as in the original home, and a malicious bundle does no harm."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import agentobs
from agentobs.cli import cli
from agentobs.errors import AgentobsError, DamagedError, ForeignError, UsageError
from agentobs.importers.bundle import bundle_import, bundle_origin, container, import_bundle
from agentobs.importers.bundle.container import Entry
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import Block, Index, Summary
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segment_import import import_segment
from agentobs.recording.journal.segments import Line, facts_path, line_of, read, segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.labels import Label
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.verification import verify
from agentobs.store.named_queries import query_names, query_text
from agentobs.store.session_lookup import find_session
from exporters import bundles
from replay.freeze.conversion import freeze
from tests.exporters.sample_agents import recording, run_agent, run_delegation
from tests.store.recordings import T0, attempt, end, record, session_id, start

WORD = "Kanarien vogel"
SECRET = "ghp_" + "Ab1" * 12


def run(home: Home, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home.path), *map(str, arguments)])


def failed() -> None:
    with agentobs.session("failed", tags={"who": WORD}):
        with agentobs.span("outer"):
            raise ValueError(WORD)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with sessions of each kind: concurrent calls, a sub-agent, a failure, and an opt-in to content."""
    path = tmp_path_factory.mktemp("bundle") / "home"
    with recording(path):
        run_agent(model="claude-sonnet-5", prompt=WORD)
        run_delegation()
        run_agent("opted in", content="export", prompt=WORD)
        with pytest.raises(ValueError, match=WORD):
            failed()
    found = Home(path)
    record(
        found, [start(1, name=WORD), attempt(1, 1), attempt(1, 2, status=529), end(1, failed=True)]
    )
    return found


@pytest.fixture(scope="module")
def bundled(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all sessions, without content."""
    return made(home, tmp_path_factory.mktemp("made") / "all.bundle")


@pytest.fixture(scope="module")
def elsewhere(bundled: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Another home, into which the bundled sessions were imported; tests must not change it."""
    other = open_home(tmp_path_factory.mktemp("elsewhere") / "other")
    result = run(other, "import", "bundle", bundled)
    assert result.exit_code == 0, result.exception
    assert "was recorded" not in result.stderr
    return other


@pytest.fixture
def other(elsewhere: Home, tmp_path: Path) -> Home:
    """A copy of the other home, which the test may change."""
    return Home(shutil.copytree(elsewhere.path, tmp_path / "other"))


@pytest.fixture(scope="module")
def bundle_with_content(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one session, with its content."""
    return made(home, tmp_path_factory.mktemp("whole") / "one.bundle", "acting", "--with-content")


def made(home: Home, path: Path, *what: str) -> Path:
    names = what or tuple(ids(home))
    result = run(home, "bundle", *names, "-o", path)
    assert result.exit_code == 0, result.exception
    return path


def ids(home: Home) -> list[str]:
    with connect(home) as connection:
        rows = connection.execute("SELECT session_id FROM sessions ORDER BY started_ns, session_id")
        return [row[0] for row in rows.fetchall()]


def id_of(home: Home, name: str) -> str:
    with connect(home) as connection:
        sql = "SELECT session_id FROM sessions WHERE name = ?"
        [(found,)] = connection.execute(sql, [name]).fetchall()
        return str(found)


def sums(home: Home) -> list[Any]:
    """Return the rows of the view `sessions`."""
    with connect(home) as connection:
        return connection.execute("FROM sessions ORDER BY session_id").fetchall()


def answers(home: Home) -> dict[str, Any]:
    """Return the results of all named queries; queries about one session run for two sessions."""
    results: dict[str, Any] = {}
    with connect(home) as connection:
        sql = "SELECT session_id FROM sessions WHERE name IN ('acting', 'failed') ORDER BY ALL"
        sessions = connection.execute(sql).fetchall()
        for name in query_names():
            about = (
                [row[0] for row in sessions]
                if re.search(r"\$session_id\b", query_text(name))
                else [None]
            )
            for each in about:
                parameters = {"session_id": each} if each else {}
                cursor = named(connection, name, **parameters)
                columns = [column[0] for column in cursor.description or []]
                rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
                results[f"{name} {each or ''}"] = rows
    return results


@pytest.mark.slow
def test_queries_return_the_same_results_on_another_machine(home: Home, elsewhere: Home) -> None:
    """Every named query returns the same results after an import, with exact costs, except for segment files."""
    assert verify(elsewhere).ok, verify(elsewhere).lines()
    mine, theirs = answers(home), answers(elsewhere)
    assert mine.keys() == theirs.keys()
    for name in mine:
        if name.startswith("session_segments"):
            assert len(mine[name]) == len(theirs[name]) == 1
            assert mine[name][0]["records"] == theirs[name][0]["records"]
        elif name.startswith("spent_today"):
            continue  # depends on the current day
        else:
            assert theirs[name] == mine[name], name
    assert len(mine) > 40


@pytest.mark.slow
def test_a_session_imported_with_content_freezes_to_the_same_fixture(
    home: Home, bundle_with_content: Path, tmp_path: Path
) -> None:
    """The fixture of an imported session is byte-for-byte identical to that of the recorded session."""
    other = open_home(tmp_path / "other")
    assert run(other, "import", "bundle", bundle_with_content).exit_code == 0
    session = id_of(home, "acting")
    fixtures = []
    for number, each in enumerate((home, other)):
        frozen_files = freeze(
            read_session(each, session, segment_ids(each)), tmp_path / str(number), {}
        )
        fixtures.append(frozen_files.fixture.read_bytes())
    assert fixtures[0] == fixtures[1]
    assert WORD.encode() in fixtures[0]
    frozen = run(other, "freeze", "acting", "-o", tmp_path / "fixture", "--no-check")
    assert frozen.exit_code == 0, frozen.exception
    assert "2 tool calls" in frozen.output


@pytest.mark.slow
def test_importing_twice_changes_nothing(home: Home, bundled: Path, tmp_path: Path) -> None:
    """Importing the same sessions again changes nothing, and a second bundle of them has identical bytes."""
    again = made(home, tmp_path / "again.bundle")
    assert again.read_bytes() == bundled.read_bytes()
    other = open_home(tmp_path / "other")
    assert run(other, "import", "bundle", bundled).output.count("imported, no content") == 5
    before = {p: p.read_bytes() for p in other.path.rglob("*") if p.is_file()}
    result = run(other, "import", "bundle", again)
    assert result.output.count("already imported") == 5
    assert {p: p.read_bytes() for p in other.path.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_a_bundle_without_content_contains_no_text_of_the_session(
    elsewhere: Home, bundled: Path, tmp_path: Path
) -> None:
    """Without content, a bundle contains only labels and digests, but no other text of the session.

    An attempt to freeze the imported session reports why this is impossible.
    """
    for text in plain(bundled, tmp_path):
        for word in (WORD, WORD.split(maxsplit=1)[0], "nothing in box", "Done."):
            assert word.encode() not in text
    assert stat.S_IMODE(bundled.stat().st_mode) == 0o600
    frozen = run(elsewhere, "freeze", "acting", "-o", tmp_path / "fixture")
    assert "was pruned" in str(frozen.exception)
    assert not (tmp_path / "fixture").exists()


def made_folder(path: Path) -> Path:
    path.mkdir()
    return path


def plain(path: Path, tmp_path: Path) -> Iterator[bytes]:
    """Yield the bytes of a bundle, and each of its entries decompressed."""
    yield path.read_bytes()
    opened = container.open_bundle(path)
    folder = tmp_path / "taken"
    folder.mkdir()
    for entry in opened.entries:
        place = folder / f"{entry.segment_id}.{entry.side}"
        container.extract(opened, entry, place.with_name(place.name + ".zst"))
        yield b"\n".join(line.payload for line in read(place) if isinstance(line, Line))


@pytest.mark.slow
def test_content_without_an_opt_in_causes_a_warning(home: Home, tmp_path: Path) -> None:
    """With `--with-content`, a warning names the sessions that did not opt in to content.

    Without the option, no content is bundled.
    """
    opted = run(home, "bundle", "opted in", "--with-content", "-o", tmp_path / "a")
    assert opted.exit_code == 0, opted.exception
    assert "warning" not in opted.stderr
    other = run(home, "bundle", "acting", "--with-content", "-o", tmp_path / "b")
    assert "were not recorded with content" in other.stderr
    assert id_of(home, "acting") in other.stderr
    without = run(home, "bundle", "opted in", "-o", tmp_path / "c")
    assert "no content" in without.output
    assert not any(WORD.encode() in text for text in plain(tmp_path / "c", tmp_path))
    assert any(
        WORD.encode() in text for text in plain(tmp_path / "a", made_folder(tmp_path / "a2"))
    )


def test_an_unredacted_secret_prevents_the_bundle(tmp_path: Path) -> None:
    """If the search for secrets finds a secret in the bundle, an error names its kind and no file is written.

    An example is a token in base64.
    """
    import base64

    home = open_home(tmp_path / "home")
    hidden = base64.b64encode(base64.b64encode(f"token {SECRET} ".encode() * 3)).decode()
    content = [{"type": "text", "text": hidden}]
    record(home, [start(1), attempt(1, 1, content=content), end(1)])
    result = run(home, "bundle", session_id(1), "--with-content", "-o", tmp_path / "x")
    assert "a possible secret was not redacted: github_token in base64" in str(result.exception)
    assert SECRET not in str(result.exception)
    assert [each.name for each in tmp_path.iterdir()] == ["home"]


@pytest.mark.slow
def test_organization_ids_are_removed_from_signed_values(tmp_path: Path) -> None:
    """Signed values of the provider contain no organization ID in the bundle, in responses and in later requests.

    Each request can still be rebuilt.
    """
    import base64

    home = open_home(tmp_path / "home")
    account = "6fd2c1a0-1234-4abc-9def-0123456789ab"
    signature = base64.b64encode(b"\x0a\x24" + account.encode() + b"x" * 40).decode()
    thought = {"type": "thinking", "thinking": "hm", "signature": signature}
    first, second = attempt(1, 1, content=[thought]), attempt(1, 2)
    body = json.loads(second.question.body)
    body["messages"] = [*body["messages"], {"role": "assistant", "content": [thought]}]
    second = replace(second, question=replace(second.question, body=json.dumps(body).encode()))
    third = replace(
        attempt(1, 3), question=replace(second.question, body=json.dumps(body).encode() + b" ")
    )
    record(home, [start(1), first, second, third, end(1)])
    path = made(home, tmp_path / "x", session_id(1), "--with-content")
    seen = b"".join(plain(path, tmp_path))
    assert signature.encode() not in seen
    other = open_home(tmp_path / "other")
    assert run(other, "import", "bundle", path).exit_code == 0
    imported = read_session(other, session_id(1), segment_ids(other))
    assert len(imported.exchanges) == 3
    for exchange in imported.exchanges[1:]:
        sealed = json.loads(exchange.question.body)["messages"][-1]["content"][0]["signature"]  # type: ignore[union-attr]
        assert len(sealed) == len(signature)
        assert account.encode() not in base64.b64decode(sealed)


@pytest.mark.slow
def test_an_import_with_content_replaces_one_without_content(
    other: Home, bundled: Path, bundle_with_content: Path, tmp_path: Path
) -> None:
    """An import with content adds the content once; a later import without content does not remove it.

    Query results do not change.
    """
    before = sums(other)
    result = run(other, "import", "bundle", bundle_with_content)
    assert "imported; it replaces a version without content, with content" in result.output
    assert verify(other).ok, verify(other).lines()
    assert sums(other) == before
    assert "skipped" in run(other, "import", "bundle", bundled).output
    assert run(other, "freeze", "acting", "-o", tmp_path / "fixture", "--no-check").exit_code == 0


@pytest.mark.slow
def test_a_recorded_session_is_not_replaced_by_its_bundle(home: Home, bundled: Path) -> None:
    """A session that was recorded in this home is neither replaced by its bundle nor counted twice."""
    before = sums(home)
    result = run(home, "import", "bundle", bundled)
    assert result.output.count("skipped: a session with this ID exists") == 5
    assert sums(home) == before


@pytest.mark.slow
def test_a_deleted_session_is_not_imported_again(other: Home, bundled: Path) -> None:
    """A repeated import, with or without content, does not restore a deleted session and reports this."""
    gone = ids(other)[0]
    prune(other, sessions=[gone])
    output = run(other, "import", "bundle", bundled).output
    assert f"{gone}  skipped: this session was deleted from this home, no content" in output
    assert output.count("already imported") == 4
    assert gone not in ids(other)


@pytest.mark.slow
def test_a_recorded_and_deleted_session_is_not_imported_again(tmp_path: Path) -> None:
    """If a recorded session was deleted, its bundle does not restore it in this home, but can be imported elsewhere."""
    home = open_home(tmp_path / "home")
    record(home, [start(1), attempt(1, 1), end(1)])
    facts = made(home, tmp_path / "facts", session_id(1))
    all_of_it = made(home, tmp_path / "whole", session_id(1), "--with-content")
    prune(home, sessions=[session_id(1)])
    for path in (facts, all_of_it):
        result = run(home, "import", "bundle", path)
        assert result.exit_code == 0, result.exception
        assert "skipped: this session was deleted from this home" in result.output
        assert ids(home) == []
    other = open_home(tmp_path / "other")
    assert run(other, "import", "bundle", facts).exit_code == 0
    prune(other, sessions=[session_id(1)])
    assert (
        "skipped: this session was deleted from this home"
        in run(other, "import", "bundle", all_of_it).output
    )
    assert ids(other) == []


@pytest.mark.slow
def test_an_interrupted_replacement_is_completed_by_the_next_import(
    home: Home, other: Home, bundle_with_content: Path
) -> None:
    """If an import is killed after it removed the old version of a session, the next import adds the new version."""

    def dies(of: Home, session: str) -> None:
        prune(of, sessions=[session])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_bundle(other, bundle_with_content, remove_session=dies)
    session = id_of(home, "acting")
    assert session not in ids(other)
    assert (
        "imported; it replaces a version without content"
        in run(other, "import", "bundle", bundle_with_content).output
    )
    assert session in ids(other)
    assert "already imported" in run(other, "import", "bundle", bundle_with_content).output


@pytest.mark.slow
@pytest.mark.parametrize("is_before", [True, False])
def test_the_origin_of_a_session_is_known_even_if_its_import_dies(
    bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """No session of a bundle looks as if it was recorded here, even if the process dies after the session was written.

    The next import finishes an import that died.
    """
    other = open_home(tmp_path / "other")

    def dies(*arguments: Any) -> None:
        if not is_before:
            import_segment(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bundle_import, "import_segment", dies)
        with pytest.raises(KeyboardInterrupt):
            import_bundle(other, bundled, remove_session=lambda *_: None)
    assert len(ids(other)) == (0 if is_before else 1)
    for session in ids(other):
        origin = bundle_origin(other, session)
        assert origin is not None
        assert origin.file == bundled.name
    output = run(other, "import", "bundle", bundled).output
    assert output.count("already imported") == (0 if is_before else 1)
    assert len(ids(other)) == 5
    assert run(other, "import", "bundle", bundled).output.count("already imported") == 5


@pytest.mark.slow
def test_digests_of_names_keep_the_key_of_their_home(home: Home, elsewhere: Home) -> None:
    """A name that is not a label is a digest with the key of its home, so only that home finds the session by name."""
    with open_store(home) as mine, open_store(elsewhere) as theirs:
        sql = "SELECT name FROM sessions WHERE session_id = ?"
        [(name,)] = mine.sql(sql, [session_id(1)]).rows
        assert list(theirs.sql(sql, [session_id(1)]).rows) == [(name,)]
        assert name.startswith("digest:")
        assert find_session(mine, WORD, key=home.key()) == session_id(1)
        with pytest.raises(UsageError, match="no session"):
            find_session(theirs, WORD, key=elsewhere.key())


@pytest.mark.slow
def test_missing_records_are_missing_after_the_import(tmp_path: Path) -> None:
    """Records that are unreadable in the original home are missing after the import, and both homes report that."""
    home = open_home(tmp_path / "home")
    record(home, [start(1), attempt(1, 1), attempt(1, 2), end(1)])
    [path] = home.segments.glob("*.facts")
    data = path.read_bytes()
    at = data.index(b"tool_use_count")
    path.write_bytes(data[:at] + b"X" + data[at + 1 :])
    other = open_home(tmp_path / "other")
    run(other, "import", "bundle", made(home, tmp_path / "x", session_id(1)))
    for each in (home, other):
        with connect(each) as connection:
            sql = "SELECT incomplete, attempts FROM sessions"
            assert connection.execute(sql).fetchall() == [(True, 1)]


def test_a_running_session_cannot_be_bundled(tmp_path: Path) -> None:
    """The error explains the reason, and nothing is written."""
    with recording(tmp_path / "home"), agentobs.session("going on"):
        agentobs.event("my.event")
        assert agentobs.recording.session.flush()
        result = run(Home(tmp_path / "home"), "bundle", "going on", "-o", tmp_path / "x")
    assert "is still running" in str(result.exception)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_cost_that_differs_at_local_prices_is_reported(home: Home, tmp_path: Path) -> None:
    """If the local prices result in a different cost, both amounts are reported."""
    path = made(home, tmp_path / "x", "acting")
    other = open_home(tmp_path / "other")
    record(other, [start(9), end(9)])
    prices = """
[[price]]
models = ["claude-sonnet-5"]
input = 1000
output = 1000
source = "here"
checked = 2026-11-22
"""
    (other.path / "prices.toml").write_text(prices)
    result = run(other, "import", "bundle", path)
    assert result.exit_code == 0, result.exception
    assert re.search(
        r"costs [0-9.]+ USD at local prices .*, [0-9.]+ USD at the prices of the machine that recorded it ",
        result.stderr,
    )


# Attacks


def refused(path: Path, tmp_path: Path, kind: type[AgentobsError] = DamagedError) -> str:
    """Import an invalid bundle, check that nothing was imported, and return the error text."""
    other = open_home(tmp_path / "victim")
    before = sorted(str(each) for each in other.path.rglob("*"))
    with pytest.raises(kind) as caught:
        import_bundle(other, path, remove_session=lambda *_: None)
    assert sorted(str(each) for each in other.path.rglob("*")) == before
    return str(caught.value)


Lines = list[tuple[str, dict[str, Any]]]


def forged(
    path: Path,
    facts: Lines,
    content_lines: Lines | None = None,
    session: str = "1" * 32,
    **options: Any,
) -> Path:
    """Write a bundle of one session with the given lines and with correct digests and checksums."""
    raw: dict[int, bytes] = options.get("raw", {})
    payloads = [(kind, raw.get(at, bundles.json_of(v))) for at, (kind, v) in enumerate(facts)]
    segment = container.segment_of(payloads, content_lines is not None)
    with path.open("wb") as out:
        writer = container.Writer(out)
        lines = bundles._lines(segment, facts, 1)
        writer.add(session, segment, "facts", with_raw(lines, segment, raw))
        if content_lines is not None:
            writer.add(session, segment, "content", bundles._lines(segment, content_lines, 1))
        writer.close([])
    return path


def with_raw(lines: Iterator[bytes], segment: str, raw: dict[int, bytes]) -> Iterator[bytes]:
    seed = zlib.crc32(segment.encode())
    for at, line in enumerate(lines):
        kind = line.split(b" ")[2].decode()
        yield line_of(seed, at + 1, kind, raw[at - 1]) if at - 1 in raw else line


def facts_of(path: Path, tmp_path: Path, name: str = "facts") -> Lines:
    """Return the facts of the only session in a bundle."""
    opened = container.open_bundle(path)
    [entry] = [e for e in opened.entries if e.side == name]
    place = tmp_path / f"{entry.segment_id}.{name}"
    container.extract(opened, entry, place.with_name(place.name + ".zst"))
    lines = [line for line in read(place) if isinstance(line, Line)][1:-1]
    place.with_name(place.name + ".zst").unlink()
    return [(line.kind, line.value()) for line in lines]


EVENT: tuple[str, dict[str, Any]] = (
    "events",
    {
        "session_id": "1" * 32, "interaction_id": None, "lane": "main", "turn": None, "at_ns": 5,
        "kind": "note", "label": None, "numbers": {},
    },
)  # fmt: skip


def answer(**changes: Any) -> tuple[str, dict[str, Any]]:
    return "permissions", {"session_id": "1" * 32, **changes}


def event(**changes: Any) -> tuple[str, dict[str, Any]]:
    return "events", {**EVENT[1], **changes}


def test_a_valid_forged_bundle_is_imported(tmp_path: Path) -> None:
    """The import accepts the valid bundle in which each of the following tests changes one thing."""
    path = forged(tmp_path / "x", [EVENT])
    other = open_home(tmp_path / "other")
    assert import_bundle(other, path, remove_session=lambda *_: None).sessions[0].state == "new"
    with connect(other) as connection:
        assert connection.execute("SELECT kind FROM events").fetchall() == [("note",)]


def test_a_decompression_bomb_is_rejected(tmp_path: Path) -> None:
    """A block that would exceed the size limit is not decompressed, and neither is a file that declares such a size."""
    segment = container.segment_of([], False)
    seed = zlib.crc32(segment.encode())
    packed = compression.compressed(bytes(50_000_000))
    block = Block(0, 50_000_000, 0, len(packed), zlib.crc32(packed, seed), Summary())
    index = Index(segment, 50_000_000, "b2:x", 0, (block,))
    with (tmp_path / "x").open("wb") as out:
        writer = container.Writer(out)
        data = packed + compression._index_frame(index, seed)
        out.write(data)
        digest = f"b2:{hashlib.blake2b(data, digest_size=16).hexdigest()}"
        size = len(data)
        entry = Entry("1" * 32, segment, "facts", writer._at, size, 50_000_000, digest)
        writer._entries.append(entry)
        writer.close([])
    assert len(data) < 20_000
    assert "larger than its header states" in refused(tmp_path / "x", tmp_path)
    bomb = rewritten(tmp_path / "x", tmp_path / "y", set_entry(plain=65_000_000 * 2))
    assert "the limit is 67,108,864" in refused(bomb, tmp_path)


def rewritten(
    path: Path, to: Path, change: Callable[[dict[str, Any]], Any], data: bytes | None = None
) -> Path:
    """Write a bundle with a changed manifest, or with changed entries and their correct digests."""
    data = data or path.read_bytes()
    length = int(data[-59:].split(b" ")[0], 16)
    entries, manifest = data[: -59 - length], json.loads(data[-59 - length : -59])
    for each in manifest["entries"]:
        raw = entries[each["at"] : each["at"] + each["packed"]]
        each["digest"] = f"b2:{hashlib.blake2b(raw, digest_size=16).hexdigest()}"
    changed = change(manifest)
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode() + b"\n"
    digest = hashlib.blake2b(text, digest_size=16).hexdigest().encode()
    to.write_bytes(entries + text + b"%016x %b agentobs\n" % (len(text), digest))
    return to


def set_entry(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    def change(manifest: dict[str, Any]) -> dict[str, Any]:
        first, *rest = manifest["entries"]
        return {**manifest, "entries": [{**first, **changes}, *rest]}

    return change


def twice(manifest: dict[str, Any]) -> dict[str, Any]:
    return {**manifest, "entries": manifest["entries"] * 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_entry(segment_id="../../etc/passwd"), "an entry with an invalid ID"),
        (set_entry(segment_id="C:\\x" + "0" * 28), "an entry with an invalid ID"),
        (set_entry(segment_id="0" * 31 + "\0"), "segment_id is not printable text"),
        (set_entry(session_id="a" * 4096), "session_id is not printable text"),
        (set_entry(session_id="a b"), "an entry without a session or without a side"),
        (set_entry(side="/etc"), "an entry without a session or without a side"),
        (set_entry(at=0), "it is out of order"),
        (set_entry(packed=2**61), "do not end at the manifest"),
        (set_entry(plain=2**61), "it expands to"),
        (set_entry(at=-1), "out of bounds"),
        (set_entry(packed=True), "the wrong type"),
        (set_entry(more=1), "unexpected fields"),
        (set_entry(digest="md5:x"), "an entry with an invalid ID or digest"),
        (twice, "it is out of order"),
        (lambda m: {**m, "entries": [{**m["entries"][0], "packed": 0, "plain": 0, "side": "content"}, *m["entries"]]},
         "a manifest"),
        (lambda m: {"format": 1}, "is missing"),
        (lambda m: [], "the manifest is invalid: list indices must be integers"),
        (lambda m: b"[" * 100_000 + b"\n", "nested too deeply"),
        (lambda m: b'{"format":1,"format":1}\n', "a duplicate key"),
        (lambda m: b'{"format":NaN}\n', "an invalid number"),
        (lambda m: b'{"format":' + b"9" * 1_000_000 + b"}\n", "the manifest is invalid: Exceeds the limit"),
        (lambda m: b'{"format":"\xff\xfe"}\n', "the manifest is invalid: 'utf-8' codec"),
    ],
)  # fmt: skip
def test_an_invalid_manifest_is_rejected(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], why: str
) -> None:
    """Invalid names, duplicates, overlaps and sizes are rejected; names in a bundle are never used as paths."""
    path = rewritten(forged(tmp_path / "x", [EVENT]), tmp_path / "y", change)
    error_text = refused(path, tmp_path)
    assert why in error_text or why == "a manifest", error_text


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"session_id":"' + b"1" * 32 + b'","at_ns":' + b"9" * 1_000_000 + b"}", "integer"),
        (bundles.json_of(EVENT[1]).replace(b'"numbers":{}', b'"numbers":{"x":1e400}'), "numbers"),
        (bundles.json_of(EVENT[1]).replace(b'"numbers":{}', b'"numbers":{"x":NaN}'), "an invalid number: NaN"),
        (bundles.json_of(EVENT[1]).replace(b'"at_ns":5', b'"at_ns":1180591620717411303424'), "at_ns"),
        (bundles.json_of(EVENT[1]).replace(b'"note"', b'"n\xff\xfe"'), "utf-8"),
        (bundles.json_of(EVENT[1]).replace(b'"note"', b'"n\xed\xa0\x80"'), "kind is no"),
        (bundles.json_of(EVENT[1]).replace(b'"note"', b'"n\\u0000"'), "kind is no"),
        (bundles.json_of(EVENT[1]).replace(b'"turn":null', b'"lane":"x"'), "a duplicate key"),
        (b"[1, 2]", "not an object"),
        (b"not json", "Expecting value"),
    ],
    ids=range(11),
)  # fmt: skip
def test_an_invalid_fact_is_rejected(tmp_path: Path, payload: bytes, why: str) -> None:
    """A fact with invalid depth, numbers, encoding or duplicate names is rejected; the error names the record."""
    path = forged(tmp_path / "x", [EVENT, EVENT], raw={1: payload})
    assert why in (error_text := refused(path, tmp_path)), error_text
    assert "record 3" in error_text


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (event(session_id="2" * 32), "another session"),
        (event(more="x"), "has no field 'more'"),
        (event(kind="a\x1b]52;c;x\x07"), "kind is not a valid VARCHAR"),
        (event(kind="x" * 5_000), "kind is not a valid VARCHAR"),
        (event(kind="<img src=x onerror=alert(1)> " * 9), "kind is not a valid VARCHAR"),
        (event(labels={"a": 1}), "labels is not a valid MAP"),
        (event(turn="1"), "turn is not a valid BIGINT"),
        (event(at_ns=2**62), "at_ns is not a valid BIGINT"),
        (event(at_ns=-1), "at_ns is not a valid BIGINT"),
        (event(turn=-1), "turn is not a valid BIGINT"),
        (event(turn=2**40), "turn is not a valid BIGINT"),
        (event(numbers={"wait_ns": 1e200}), "numbers is not a valid MAP"),
        (answer(approval_wait_ns=2**61), "approval_wait_ns is not a valid BIGINT"),
        (event(rate="x"), "rate is not a valid DOUBLE"),
        (event(lane=None), "lane is not a valid VARCHAR"),
        (("prunings", {"session_id": "1" * 32, "pruned_ns": 1, "scope": "all"}), "kind prunings"),
        (("pruned", {"session_id": "1" * 32, "from": 1}), "follows"),
        (("unheard", {"session_id": "1" * 32}), "kind unheard"),
        (("events", {"session_id": "1" * 32}), "is missing in events"),
        (
            ("attempt_moves", {"session_id": "1" * 32, "x": "a b"}),
            "a string that is not a label in attempt_moves",
        ),
    ],
)
def test_an_unexpected_record_is_rejected(
    tmp_path: Path, fact: tuple[str, dict[str, Any]], why: str
) -> None:
    """A record is rejected if its fields or types are wrong, it belongs to another session, or it deletes data."""
    message = refused(forged(tmp_path / "x", [EVENT, fact]), tmp_path)
    assert why in message, message


def test_a_file_that_is_not_a_bundle_is_rejected(bundled: Path, tmp_path: Path) -> None:
    """Files without a bundle header, and bundles of a future version, each give a specific error."""
    data = bundled.read_bytes()
    for bad in (b"", b"agentobs bundle\n", b"agentobs bundle x\n", b"\x80\x04.", b"{}", data[5:]):
        (tmp_path / "x").write_bytes(bad)
        assert "not an agentobs bundle" in refused(tmp_path / "x", tmp_path, ForeignError)
    (tmp_path / "x").write_bytes(data.replace(b"bundle 1\n", b"bundle 2\n", 1))
    assert "a bundle of version 2; this version" in refused(tmp_path / "x", tmp_path, ForeignError)
    (tmp_path / "x").unlink()
    os.mkfifo(tmp_path / "x")
    assert "not a regular file" in refused(tmp_path / "x", tmp_path, ForeignError)
    result = run(
        open_home(tmp_path / "victim"), "import", "bundle", made_folder(tmp_path / "folder")
    )
    assert isinstance(result.exception, ForeignError)
    assert "not a regular file" in str(result.exception)
    result = run(open_home(tmp_path / "victim"), "import", "bundle", tmp_path / "nothing")
    assert "no such file" in str(result.exception)


def test_a_truncated_or_spliced_file_is_rejected(
    bundled: Path, bundle_with_content: Path, tmp_path: Path
) -> None:
    """A file is rejected if it is truncated or has trailing data.

    It is also rejected if it has an entry of another bundle, or lines in the wrong order.
    """
    data = bundled.read_bytes()
    for bad in (data[:-1], data[: len(data) // 2], data + b"x", data[:-59], data + data):
        (tmp_path / "x").write_bytes(bad)
        assert re.search(
            "its end is missing|do not end at the manifest", refused(tmp_path / "x", tmp_path)
        )
    facts = facts_of(bundle_with_content, tmp_path)
    session = facts[0][1]["session_id"]
    segment = container.segment_of([(k, bundles.json_of(v)) for k, v in facts], False)
    with (tmp_path / "x").open("wb") as out:
        writer = container.Writer(out)
        lines = list(bundles._lines(segment, facts, 1))
        writer.add(session, segment, "facts", [lines[0], lines[2], lines[1], *lines[3:]])
        writer.close([])
    assert "1 record missing before record 3" in refused(tmp_path / "x", tmp_path)
    with (tmp_path / "x").open("wb") as out:
        writer = container.Writer(out)
        other = list(bundles._lines("f" * 32, facts, 1))
        writer.add(session, segment, "facts", [lines[0], other[1], *lines[2:]])
        writer.close([])
    assert "its checksum does not match" in refused(tmp_path / "x", tmp_path)
    with (tmp_path / "x").open("wb") as out:
        writer = container.Writer(out)
        writer.add(session, segment, "facts", lines[:-1])
        writer.close([])
    assert "its last line is missing" in refused(tmp_path / "x", tmp_path)
    with (tmp_path / "x").open("wb") as out:
        writer = container.Writer(out)
        writer.add(session, "e" * 32, "facts", bundles._lines("e" * 32, facts, 1))
        writer.close([])
    assert "its facts do not match the ID of its segment" in refused(tmp_path / "x", tmp_path)


def test_foreign_databases_and_tables_are_not_opened(home: Home, tmp_path: Path) -> None:
    """DuckDB, Parquet and zip files are recognized by their first bytes and rejected."""
    assert run(home, "ingest").exit_code == 0
    assert run(home, "export", "attempts", "-o", tmp_path / "x.parquet").exit_code == 0
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04" + b"\0" * 100)
    for path in (home.database, tmp_path / "x.parquet", tmp_path / "x.zip"):
        error_text = refused(path, tmp_path, ForeignError)
        assert "other databases and tables are not opened" in error_text
        assert run(open_home(tmp_path / "victim"), "import", "bundle", path).exit_code == 1


def test_the_error_names_the_entry_with_a_changed_byte(
    bundled: Path, bundle_with_content: Path, tmp_path: Path
) -> None:
    """For any changed byte, the error names its entry.

    A changed manifest does not match its checksum, and another bundle has another digest.
    """
    opened = container.open_bundle(bundle_with_content)
    for entry in opened.entries:
        data = bytearray(bundle_with_content.read_bytes())
        data[entry.at + entry.packed // 2] ^= 1
        (tmp_path / "x").write_bytes(data)
        assert f"{entry.side} of session {entry.session_id}" in refused(tmp_path / "x", tmp_path)
    data = bytearray(bundle_with_content.read_bytes())
    data[-200] ^= 1
    (tmp_path / "x").write_bytes(data)
    assert "the manifest does not match its digest" in refused(tmp_path / "x", tmp_path)
    moved = rewritten(bundle_with_content, tmp_path / "y", set_entry(digest="b2:" + "0" * 32))
    assert "its bytes do not match the digest in the manifest" in refused(moved, tmp_path)
    other = open_home(tmp_path / "other")
    wrong = run(other, "import", "bundle", bundled, "--digest", opened.digest)
    assert "It does not match the expected digest: nothing was imported" in str(wrong.exception)
    assert (
        run(other, "import", "bundle", bundle_with_content, "--digest", opened.digest).exit_code
        == 0
    )


def request(
    content_id: str, base: str | None, prefix: int, suffix: int, text: str
) -> dict[str, Any]:
    head = {"method": "POST", "path": "/v1/messages", "headers": {}, "redactions": []}
    place = {"content_id": content_id, "session_id": "1" * 32, "base": base}
    return {**place, "prefix": prefix, "suffix": suffix, "text": text, **head}


@pytest.mark.parametrize(
    ("content_lines", "why"),
    [
        ([("request", request("r0", None, 0, 0, "x" * 99))]
         + [("request", request(f"r{n + 1}", f"r{n}", 99 * 2**n, 99 * 2**n, "")) for n in range(40)],
         "would exceed the size limit"),
        ([("request", request("a", "b", 0, 0, "x")), ("request", request("b", "a", 0, 0, "y"))], "is missing"),
        ([("request", request("a", "nowhere", 0, 0, "x"))], "is missing"),
        ([("request", request("a", None, -1, 0, "x"))], "an invalid count"),
        ([("request", {**request("a", None, 0, 0, "x"), "base64": "eA=="})], "no text, or two"),
        ([("request", {**request("a", None, 0, 0, "x"), "session_id": "2" * 32})], "another session"),
        ([("request", {**request("../x y", None, 0, 0, "x")})], "its content ID is not valid"),
        ([("exec", request("a", None, 0, 0, "x"))], "missing or unknown"),
        ([("start", {"content_id": "a", "session_id": "1" * 32, "text": "[" * 100_000})], "nested"),
        ([("pruned", {"from": 2, "sessions": ["1" * 32], "pruned_ns": 1})], "pruned content"),
        ([], "session"),
    ],
    ids=range(11),
)  # fmt: skip
def test_invalid_content_is_rejected(tmp_path: Path, content_lines: Lines, why: str) -> None:
    """Malformed lines, and requests that would exceed the size limit or refer to missing requests, are rejected."""
    message = refused(forged(tmp_path / "x", [EVENT], content_lines), tmp_path)
    assert why in message, message
    assert "content of session" in message


def test_the_size_of_a_rebuilt_request_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is rebuilt from a chain of requests cannot exceed the size limit."""
    content_lines: Lines = [("request", request("r0", None, 0, 0, "x" * 60))]
    content_lines += [("request", request("r1", "r0", 60, 0, "y" * 60))]
    monkeypatch.setattr("agentobs.importers.bundle.validation.BODY_BYTES_MAX", 100)
    assert "request r1 would exceed" in refused(
        forged(tmp_path / "x", [EVENT], content_lines), tmp_path
    )


def test_content_that_facts_refer_to_must_exist(bundle_with_content: Path, tmp_path: Path) -> None:
    """A bundle is rejected if a line of content, or all of its content, is missing."""
    facts, content_lines = (
        facts_of(bundle_with_content, tmp_path),
        facts_of(bundle_with_content, tmp_path, "content"),
    )
    session = facts[0][1]["session_id"]
    path = forged(tmp_path / "x", facts, content_lines[:-1], session)
    assert "is missing, but facts reference it" in refused(path, tmp_path)
    path = forged(tmp_path / "y", facts, None, session)
    assert "it references content that is missing" in refused(path, tmp_path)
    path = forged(tmp_path / "z", facts, content_lines, session)
    other = open_home(tmp_path / "other")
    assert import_bundle(other, path, remove_session=lambda *_: None).sessions[0].has_content


@pytest.mark.slow
def test_an_imported_session_has_no_export_destination(tmp_path: Path) -> None:
    """In the importing home, a session has no export destination, even if the original home exported it live."""
    home = open_home(tmp_path / "home")
    begun = start(1)
    sent = replace(begun.start, live_exports={Label("there"): Label("genai")})
    record(home, [replace(begun, start=sent), attempt(1, 1), end(1)])
    other = open_home(tmp_path / "other")
    path = made(home, tmp_path / "x", session_id(1))
    assert run(other, "import", "bundle", path).exit_code == 0
    for each, live_exports in ((home, {"there": "genai"}), (other, None)):
        with connect(each) as connection:
            sql = "SELECT live_exports FROM session_starts"
            assert connection.execute(sql).fetchall() == [(live_exports,)]


def test_an_import_removes_the_files_of_a_killed_import(
    bundle_with_content: Path, tmp_path: Path
) -> None:
    """The next import deletes the files that a killed import has extracted."""
    other = open_home(tmp_path / "other")
    stale = other.path / ".landing-dead" / "segments"
    stale.mkdir(parents=True)
    assert run(other, "import", "bundle", bundle_with_content).exit_code == 0
    assert not [each for each in other.path.iterdir() if each.name.startswith(".landing")]
    assert facts_path(other, segment_ids(other)[0]) is not None
    assert T0

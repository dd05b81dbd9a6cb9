"""`agentobs archive claude-code`, and what `agentobs doctor` says about Claude Code's logs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentobs.cli.maintenance.doctor import SECONDS_PER_DAY, claude_code_logs
from agentobs.importers.claude_code.log_archive import FOLDER, Retention, retention
from tests.cli.test_commands import Shell

SECRET = "sk-ant-api03-" + "k3yW" * 22 + "-AA"
SESSION = "5a3ffba3-7d40-4f67-8a5a-0f2f5d6f3c1e"
NOW_S = 1_795_000_000


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path / "home", capsys)


def entries(number: int) -> list[dict[str, Any]]:
    """Return the lines of a log with a number of responses."""
    found: list[dict[str, Any]] = []
    for each in range(number):
        common = {
            "sessionId": SESSION,
            "version": "2.1.332",
            "timestamp": f"2026-11-01T10:00:{each:02}Z",
        }
        prompt = {"role": "user", "content": f"The key is {SECRET}."}
        usage = {"input_tokens": 3, "output_tokens": 5}
        response = {
            "id": f"msg_{each}", "type": "message", "role": "assistant", "model": "claude-sonnet-5",
            "content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn", "usage": usage,
        }  # fmt: skip
        found.append({**common, "type": "user", "uuid": f"u{each}", "message": prompt})
        found.append(
            {**common, "type": "assistant", "uuid": f"a{each}", "parentUuid": f"u{each}", "message": response}
        )  # fmt: skip
    return found


def write_log(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in entries(number)))


def test_logs_are_kept(shell: Shell, tmp_path: Path) -> None:
    """Copies contain no secrets, follow logs that grow, survive logs that are deleted or cut, and can be imported."""
    projects = tmp_path / "projects"
    first, second = projects / "-work" / f"{SESSION}.jsonl", projects / "-other" / "x.jsonl"
    write_log(first, 1)
    write_log(second, 2)
    ended = shell("archive", "claude-code", str(projects))
    copies = shell.home / FOLDER
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"2 logs archived, 0 archived again, 0 unchanged: {copies}\n"
    copy = copies / "-work" / first.name
    assert SECRET not in copy.read_text()
    assert [json.loads(line)["uuid"] for line in copy.read_text().splitlines()] == ["u0", "a0"]
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.stat().st_mtime_ns == first.stat().st_mtime_ns

    write_log(first, 3)
    write_log(second, 1)
    ended = shell("archive", "claude-code", str(projects))
    assert ended.out.startswith("0 logs archived, 1 archived again, 0 unchanged")
    assert ended.err == f"kept: {second} is shorter than its archived copy\n"
    second.unlink()
    assert shell("archive", "claude-code", str(projects)).out.startswith(
        "0 logs archived, 0 archived again, 1 unc"
    )
    lines = (copies / "-other" / "x.jsonl").read_text().splitlines()
    assert len(lines) == 4

    ended = shell("import", "claude-code", str(copies))
    assert (ended.code, ended.err) == (0, "")
    assert "3 responses" in ended.out


def test_a_log_that_cannot_be_read(shell: Shell, tmp_path: Path) -> None:
    """It is reported, and the others are archived; a pipe does not block the command."""
    projects = tmp_path / "projects"
    write_log(projects / "a" / "good.jsonl", 1)
    (projects / "a" / "gone.jsonl").symlink_to(tmp_path / "nothing")
    os.mkfifo(projects / "a" / "pipe.jsonl")
    long = projects / "a" / "long.jsonl"
    long.write_bytes(b"x" * (64 * 1024 * 1024 + 1) + b"\n{}\n")
    ended = shell("archive", "claude-code", str(projects))
    assert ended.out.startswith("2 logs archived")
    assert (ended.code, ended.err) == (1, "skipped: 1 line is too long\n")
    assert (shell.home / FOLDER / "a" / "long.jsonl").read_text() == "{}\n"


def uuids(path: Path) -> list[str]:
    return [json.loads(line)["uuid"] for line in path.read_text().splitlines()]


def test_a_log_that_is_replaced(shell: Shell, tmp_path: Path) -> None:
    """If another log has the name of an archived one, both are kept, whatever their sizes are."""
    projects = tmp_path / "projects"
    log, copies = projects / "a" / "log.jsonl", shell.home / FOLDER / "a"
    write_log(log, 2)
    assert shell("archive", "claude-code", str(projects)).code == 0
    log.write_text(log.read_text().replace('"u0"', '"v0"'))  # as long as before
    ended = shell("archive", "claude-code", str(projects))
    assert (ended.code, ended.err) == (0, f"kept: {log} is another log than its old copy\n")
    write_log(log, 1)
    log.write_text(log.read_text().replace('"u0"', '"w0"'))
    assert shell("archive", "claude-code", str(projects)).out.startswith("0 logs archived, 1 ar")
    assert uuids(copies / "log.1.jsonl") == ["u0", "a0", "u1", "a1"]
    assert uuids(copies / "log.2.jsonl") == ["v0", "a0", "u1", "a1"]
    assert uuids(copies / "log.jsonl") == ["w0", "a0"]
    assert shell("archive", "claude-code", str(projects)).out.startswith(
        "0 logs archived, 0 archived again, 1 un"
    )


def test_copies_are_not_lost_without_the_index(shell: Shell, tmp_path: Path) -> None:
    """If the index is lost or damaged, a log that is shorter now does not replace its copy."""
    projects = tmp_path / "projects"
    log, copies = projects / "a" / "log.jsonl", shell.home / FOLDER
    for damage in ("", "[1]", '{"a": {}}'):
        write_log(log, 2)
        assert shell("archive", "claude-code", str(projects)).code == 0
        (copies / "index.json").write_text(damage)
        write_log(log, 1)
        ended = shell("archive", "claude-code", str(projects))
        assert ended.err == f"kept: {log} is shorter than its archived copy\n"
        assert len(uuids(copies / "a" / "log.jsonl")) == 4


def test_a_line_that_is_still_being_written(shell: Shell, tmp_path: Path) -> None:
    """A part of a line, which can contain a part of a secret, is left for the next time."""
    log, copy = tmp_path / "projects" / "a" / "log.jsonl", shell.home / FOLDER / "a" / "log.jsonl"
    write_log(log, 2)
    complete = log.read_text()
    log.write_text(complete[: complete.rindex(SECRET) + 30])
    assert shell("archive", "claude-code", str(tmp_path / "projects")).code == 0
    assert uuids(copy) == ["u0", "a0"]
    assert SECRET[:20] not in copy.read_text()
    log.write_text(complete.removesuffix("\n"))
    assert shell("archive", "claude-code", str(tmp_path / "projects")).out.startswith(
        "0 logs archived, 1 ar"
    )
    assert uuids(copy) == ["u0", "a0", "u1", "a1"]


def test_links_to_folders(shell: Shell, tmp_path: Path) -> None:
    """They are followed, each folder once, by the doctor as well; a link to a parent does no harm."""
    projects = tmp_path / "projects"
    write_log(tmp_path / "elsewhere" / "log.jsonl", 1)
    projects.mkdir()
    (projects / "a").symlink_to(tmp_path / "elsewhere")
    (projects / "loop").symlink_to(projects)
    os.mkfifo(projects / "pipe.jsonl")
    assert shell("archive", "claude-code", str(projects)).out.startswith("1 log archived, 0")
    assert (shell.home / FOLDER / "a" / "log.jsonl").is_file()
    [found] = claude_code_logs(shell.home, {"CLAUDE_CONFIG_DIR": str(tmp_path)}, NOW_S * 10**9)
    assert found.found.startswith("1 session log of Claude Code")
    assert found.level == "ok"


def test_files_and_folders_without_permission(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are reported, by the command and by the doctor, and the others are archived."""
    projects = tmp_path / "projects"
    for name in ("closed", "open", "secret"):
        write_log(projects / name / "log.jsonl", 1)
    scan, read = os.scandir, os.open

    def scandir(path: Any) -> Any:
        if str(path) == str(projects / "closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    def open_file(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path) == str(projects / "secret" / "log.jsonl"):
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments, **options)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "open", open_file)
    ended = shell("archive", "claude-code", str(projects))
    assert (ended.code, ended.out[:14]) == (1, "1 log archived")
    assert sorted(ended.err.splitlines()) == [
        f"skipped: {projects / 'closed'}: permission denied",
        f"skipped: {projects / 'secret' / 'log.jsonl'}: permission denied",
    ]
    found = list(claude_code_logs(shell.home, {"CLAUDE_CONFIG_DIR": str(tmp_path)}, NOW_S * 10**9))
    assert [each.level for each in found] == ["note", "ok"]
    assert found[0].where == str(projects / "closed")


def test_a_full_disk(shell: Shell, tmp_path: Path) -> None:
    """One error; copies stay as they were, nothing unfinished stays, and the next run completes the archive."""
    projects = tmp_path / "projects"
    log, copies = projects / "a" / "log.jsonl", shell.home / FOLDER
    write_log(log, 1)
    assert shell("archive", "claude-code", str(projects)).code == 0
    before = (copies / "a" / "log.jsonl").read_bytes()
    write_log(log, 50)
    script = (
        "import resource, signal, sys\n"
        "from agentobs.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["--home", str(shell.home), "archive", "claude-code", str(projects)]
    # -B: Python 3.11 would keep bytecode files that the limit has cut.
    ended = subprocess.run(
        [sys.executable, "-B", "-c", script, *arguments], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "the archive cannot be written: file too large. Free disk space" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (copies / "a" / "log.jsonl").read_bytes() == before
    assert list((copies / ".drafts").iterdir()) == []
    (copies / ".drafts" / "left").touch()  # as if the process had been killed
    assert shell("archive", "claude-code", str(projects)).out.startswith("0 logs archived, 1 ar")
    assert list((copies / ".drafts").iterdir()) == []
    assert len(uuids(copies / "a" / "log.jsonl")) == 100


def test_two_runs_at_the_same_time(shell: Shell, tmp_path: Path) -> None:
    """The second one ends with an error that states why."""
    write_log(tmp_path / "projects" / "a" / "log.jsonl", 1)
    assert shell("archive", "claude-code", str(tmp_path / "projects")).code == 0
    with (shell.home / FOLDER / "archive.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = shell("archive", "claude-code", str(tmp_path / "projects"))
    assert (ended.code, ended.out) == (1, "")
    assert "another process archives logs at this moment. Wait until it has ended" in ended.err


def test_settings_in_parts(tmp_path: Path) -> None:
    """The last file in the folder next to an administrator's settings has precedence; 0 days are not valid."""
    managed, parts = tmp_path / "managed-settings.json", tmp_path / "managed-settings.d"
    parts.mkdir()
    managed.write_text('{"cleanupPeriodDays": 1}')
    for name, days in (("10.json", 10), ("20.json", 20), ("30.json", 0)):
        (parts / name).write_text(json.dumps({"cleanupPeriodDays": days}))
    assert retention(tmp_path, [managed]) == Retention(20, str(parts / "20.json"))


def test_a_folder_that_does_not_exist(shell: Shell, tmp_path: Path) -> None:
    """One error that states what to pass."""
    ended = shell("archive", "claude-code", str(tmp_path / "none"))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith(
        "none: no such folder. Pass the folder with the logs, such as ~/.claude/projects.\n"
    )


@pytest.mark.parametrize(
    ("managed", "user", "expected"),
    [
        (None, None, 30),
        (None, {"cleanupPeriodDays": 90}, 90),
        ({"cleanupPeriodDays": 7}, {"cleanupPeriodDays": 90}, 7),
        ({"cleanupPeriodDays": "7"}, {"cleanupPeriodDays": True}, 30),
        ("[", "{", 30),
    ],
)
def test_the_retention_in_force(tmp_path: Path, managed: Any, user: Any, expected: int) -> None:
    """An administrator's settings have precedence over the user's; without valid settings, the default applies."""
    paths = {tmp_path / "managed.json": managed, tmp_path / "settings.json": user}
    for path, value in paths.items():
        if value is not None:
            path.write_text(value if isinstance(value, str) else json.dumps(value))
    found = retention(tmp_path, [tmp_path / "managed.json"])
    source = next(
        (str(path) for path, value in paths.items() if isinstance(value, dict)), "default"
    )
    assert found == Retention(expected, source if expected != 30 else "default")


@pytest.mark.parametrize(
    ("age", "level", "left"), [(0, "ok", "30 days"), (24, "note", "6 days"), (40, "note", "0 days")]
)
def test_the_doctor_tells_the_age_of_logs(
    shell: Shell, tmp_path: Path, age: int, level: str, left: str
) -> None:
    """It reports the age of the oldest log, when it is deleted, and what to do; archived logs need nothing."""
    log = tmp_path / "projects" / "a" / "log.jsonl"
    variables = {"CLAUDE_CONFIG_DIR": str(tmp_path)}
    assert list(claude_code_logs(shell.home, variables, NOW_S * 10**9)) == []
    write_log(log, 1)
    changed = NOW_S - age * SECONDS_PER_DAY
    os.utime(log, (changed, changed))
    [found] = claude_code_logs(shell.home, variables, NOW_S * 10**9)
    assert (found.check, found.level) == ("claude_code", level)
    assert (
        f"the oldest {age} days old; it deletes them after 30 days (cleanupPeriodDays: default)"
        in found.found
    )
    assert f"1 not archived or changed since then, the first is deleted in {left}" in found.found
    assert ("agentobs archive claude-code" in found.todo) == (level == "note")

    assert shell("archive", "claude-code", str(tmp_path / "projects")).code == 0
    [found] = claude_code_logs(shell.home, variables, NOW_S * 10**9)
    assert (found.level, found.found.endswith("it is archived")) == ("ok", True)
    write_log(log, 2)
    os.utime(log, (changed, changed))
    [found] = claude_code_logs(shell.home, variables, NOW_S * 10**9)
    assert (found.level, "1 not archived or changed" in found.found) == (level, True)

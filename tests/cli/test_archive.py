"""`agentobs archive claude-code`, and what `agentobs doctor` says about Claude Code's logs."""

from __future__ import annotations

import json
import os
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
    """It is reported, and the others are archived; a pipe is not waited for."""
    projects = tmp_path / "projects"
    write_log(projects / "a" / "good.jsonl", 1)
    (projects / "a" / "gone.jsonl").symlink_to(tmp_path / "nothing")
    os.mkfifo(projects / "a" / "pipe.jsonl")
    long = projects / "a" / "long.jsonl"
    long.write_bytes(b"x" * (64 * 1024 * 1024 + 1) + b"\n{}\n")
    ended = shell("archive", "claude-code", str(projects))
    assert ended.out.startswith("2 logs archived")
    assert (ended.code, ended.err) == (1, "skipped: 1 lines are too long\n")
    assert (shell.home / FOLDER / "a" / "long.jsonl").read_text() == "{}\n"


def test_a_folder_that_does_not_exist(shell: Shell, tmp_path: Path) -> None:
    """One error that says what to pass."""
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
    """It tells the age of the oldest log, when it is deleted, and what to do; archived logs need nothing."""
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
    assert f"1 are not archived, the first of which will be deleted in {left}" in found.found
    assert ("agentobs archive claude-code" in found.todo) == (level == "note")

    assert shell("archive", "claude-code", str(tmp_path / "projects")).code == 0
    [found] = claude_code_logs(shell.home, variables, NOW_S * 10**9)
    assert (found.level, found.found.endswith("all are archived")) == ("ok", True)

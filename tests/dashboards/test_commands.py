"""Commands that session pages start: the arguments, the limits, who may start them, and what pages show about them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from agentobs.cli.inspection.dashboard_commands import dashboard_commands
from agentobs.cli.replay.freeze import folder_name
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from dashboards.app.commands.command_jobs import (
    MOST_RUNNING,
    Commands,
    Fixture,
    JobRunner,
    Origin,
)
from dashboards.app.server import SHARED, DashboardOptions
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.dashboards.live_app import Client, query_rows, serving
from tests.store.recordings import T0, a_home

HOSTILE = "../--apply; touch hacked"
SECRET = "canary-in-output"
DIVERGENCE = {
    "agentobs_divergence": 1,
    "kind": "content",
    "lane": "main",
    "number": 2,
    "of": 2,
    "turn": 2,
    "summary": f"the requests differ {SECRET}",
    "differences": [{"path": "$.system", "change": "changed", "expected": "old", "actual": SECRET}],
    "more": 0,
    "progress": {"requests_matched": 1, "requests": 2, "tools_matched": 0, "tools": 0},
    "cause": None,
    "sent": {"file": "agent.py", "line": 7, "function": "answer"},
}


@dataclass
class Printed:
    printed: str = ""

    def text(self) -> str:
        return self.printed


@dataclass
class FakeProgram:
    """A program that runs until a test or the dashboard ends it."""

    arguments: Sequence[str]
    has_ended: threading.Event = field(default_factory=threading.Event)
    stdout: Printed = field(default_factory=Printed)
    stderr: Printed = field(default_factory=Printed)
    exit_code: int | None = None
    is_interrupted: bool = False

    def interrupt(self) -> None:
        self.is_interrupted = self.exit_code is None
        self.exit_code = 130 if self.exit_code is None else self.exit_code

    def end(self, exit_code: int, output: str = "") -> None:
        self.stdout.printed, self.exit_code = output, exit_code
        self.has_ended.set()


@dataclass
class Started:
    """The home, the client and the programs that were started."""

    home: Home
    client: Client
    session_id: str
    programs: list[FakeProgram]
    fixtures: Path

    def post(self, **fields: str) -> int:
        return self.client.press(f"/sessions/{self.session_id}/jobs", part=False, **fields).status

    @property
    def page(self) -> str:
        return self.client.get(f"/sessions/{self.session_id}?tab=commands").html

    def end(self, exit_code: int, output: str = "") -> None:
        """End the last program, and wait until the dashboard knows it."""
        self.programs[-1].end(exit_code, output)
        while "data-running" in self.client.get(f"/sessions/{self.session_id}/jobs").html:
            threading.Event().wait(0.01)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a session whose name looks like options and shell code, and a session without content."""
    home = a_home(tmp_path_factory.mktemp("commands"))
    with recording(home) as emit:
        for name, content in ((HOSTILE, "vault"), ("bare", "off")):
            run = SyntheticSession(emit, name, T0, seed=len(name), content=content)
            with run.interaction("Hello."):
                run.turn(text("Hello."))
                run.turn(text("Hello again."))
            run.end()
    return home


@pytest.fixture
def fixtures(tmp_path: Path) -> Path:
    return tmp_path / "fixtures"


@pytest.fixture
def commands(home: Home, fixtures: Path, programs: list[FakeProgram]) -> Commands:
    def start(arguments: Sequence[str]) -> FakeProgram:
        programs.append(FakeProgram(arguments))
        return programs[-1]

    def fixtures_of(folder: Path, session_id: str) -> list[Fixture]:
        del session_id
        return [Fixture(each, False, "shop.agents:run") for each in sorted(folder.glob("mine*"))]

    return Commands(
        home.path,
        fixtures.parent,
        fixtures,
        start,
        folder_name=folder_name,
        fixtures_of=fixtures_of,
    )


@pytest.fixture
def programs() -> list[FakeProgram]:
    return []


@pytest.fixture
def started(
    home: Home, commands: Commands, programs: list[FakeProgram], fixtures: Path
) -> Iterator[Started]:
    [session_id] = [
        str(row[0])
        for row in query_rows(home, "SELECT session_id FROM session_starts WHERE content = 'vault'")
    ]
    with serving(home, commands) as client:
        yield Started(home, client, session_id, programs, fixtures)


@pytest.mark.slow
def test_freeze_starts_the_shown_command(started: Started) -> None:
    """Freeze runs the command that the page shows; names come after `--`, and the folder is below the given one."""
    folder = started.fixtures / "apply-touch-hacked"
    assert str(folder) in started.page
    assert started.post(action="freeze", check="1") == 303
    assert started.programs[0].arguments == ["freeze", "-o", str(folder), "--", started.session_id]
    assert "agentobs --home=" in started.page
    assert f"freeze -o fixtures/apply-touch-hacked {started.session_id}" in started.page
    started.end(0, f"froze  {SECRET}\nreplays: yes, 2 of 2\n")
    page = started.page
    assert ("written" in page, "replays: yes" in page, SECRET in page) == (True, True, False)
    assert started.post(action="freeze") == 303
    assert "--no-check" in started.programs[1].arguments


@pytest.mark.slow
def test_a_fixture_of_another_session_is_not_replaced(started: Started) -> None:
    """If the folder contains the fixture of another session, another folder is written."""
    (started.fixtures / "apply-touch-hacked").mkdir(parents=True)
    started.post(action="freeze")
    assert started.programs[0].arguments[2].endswith(f"hacked-{started.session_id[-8:]}")


@pytest.mark.slow
def test_a_divergence_links_to_its_step(started: Started) -> None:
    """A replay that diverged shows where, without content, and the step of the trace shows the replay."""
    (started.fixtures / "mine").mkdir(parents=True)
    assert started.post(action="replay", fixture="mine") == 303
    path = str(started.fixtures / "mine")
    assert started.programs[0].arguments == ["replay", "--json", "--", path]
    started.end(1, json.dumps(DIVERGENCE))
    page = started.page
    assert "Diverged at turn 2 of main" in page
    assert SECRET not in page
    [step] = set(
        started.client.get(f"/sessions/{started.session_id}?tab=commands").links(
            f"/sessions/{started.session_id}?step="
        )
    )
    assert "diverged here" in started.client.get(step).html
    shown = started.client.press(f"/sessions/{started.session_id}/output", job="1")
    assert f"<ins>{SECRET}</ins>" in shown.html
    assert SECRET not in started.client.get(f"/sessions/{started.session_id}/output").html


@pytest.mark.slow
def test_the_code_of_an_imported_session_runs_only_after_a_confirmation(
    home: Home, commands: Commands, programs: list[FakeProgram], fixtures: Path
) -> None:
    """The first form of an imported session starts nothing: it shows the program and the origin. Only the proof on
    this page starts exactly this program. Freezing without the check runs no code and is not confirmed.
    """
    (fixtures / "mine").mkdir(parents=True)
    ran = ["rm -rf <home>"]
    imported = replace(
        commands,
        origin_of=lambda session_id: Origin("the bundle evil.bundle", T0),
        program_of=lambda session_id, fixture: f"{ran[0]} {fixture and fixture.name}",
    )
    [session_id] = [
        str(row[0])
        for row in query_rows(home, "SELECT session_id FROM session_starts WHERE content = 'vault'")
    ]
    with serving(home, imported) as client:
        path = f"/sessions/{session_id}/jobs"
        assert (
            "imported from the bundle evil.bundle" in client.get(path[:-5] + "?tab=commands").html
        )

        def shown(**fields: str) -> str:
            asked = client.press(path, part=False, **fields)
            assert (asked.status, programs) == (200, [])
            assert "the bundle evil.bundle" in asked.words
            assert "or in a copy of it, with all your permissions" in asked.words
            [proof] = re.findall(r'name="confirmed" value="(\w+)"', asked.html)
            return str(proof)

        assert "rm -rf &lt;home&gt; None" in client.press(path, action="freeze", check="1").html
        freeze, replay = shown(action="freeze", check="1"), shown(action="replay", fixture="mine")
        assert (
            "rm -rf &lt;home&gt; mine" in client.press(path, action="replay", fixture="mine").html
        )
        for wrong in ("1", "é", freeze):
            shown(action="replay", fixture="mine", confirmed=wrong)
        ran[0] = "another program"
        shown(action="replay", fixture="mine", confirmed=replay)
        ran[0] = "rm -rf <home>"
        press = partial(client.press, path, part=False)
        assert press(action="replay", fixture="mine", confirmed=replay).status == 303
        programs[0].end(0)
        assert press(action="freeze", check="1", confirmed=freeze).status == 303
        programs[1].end(0)
        assert [each.arguments[0] for each in programs] == ["replay", "freeze"]
        while press(action="freeze").status != 303:
            threading.Event().wait(0.01)
        assert "--no-check" in programs[2].arguments


def test_only_pages_of_the_dashboard_start_commands(started: Started) -> None:
    """A GET, a form of another origin, and a client without the cookie start nothing."""
    path = f"/sessions/{started.session_id}/jobs"
    assert started.client.get(f"{path}?action=freeze").status == 200
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": started.client.origin, "sec-fetch-site": "same-site"},
        {},
    ):
        assert started.client.post(path, {**form, **headers}).status == 403
    started.client.cookie = "agentobs=0"
    assert started.post(action="freeze") == 403
    assert started.programs == []


def test_other_actions_and_paths_are_rejected(started: Started) -> None:
    """Only known actions start, only on fixtures of the session; a fork can only be copied."""
    forms: tuple[dict[str, str], ...] = (
        {"action": "replay", "fixture": "../../etc"},
        {"action": "replay"},
        {"action": "fork"},
        {"action": "rm -rf /"},
        {"action": "cancel", "job": "7"},
    )
    for fields in forms:
        assert started.post(**fields) == 404, fields
        assert started.programs == [], fields


@pytest.mark.slow
def test_a_fork_is_shown_for_copying(started: Started) -> None:
    """The page shows the command of a fork for the requested turn, and explains why no button starts it."""
    html = started.client.get(f"/sessions/{started.session_id}?tab=commands&turn=1").html
    assert f"fork {started.session_id} --at 1" in html
    assert "costs money" in html
    assert 'value="fork"' not in html


@pytest.mark.slow
def test_sessions_that_cannot_be_frozen_have_no_button(started: Started) -> None:
    """The page explains why a session cannot be frozen, and a form for it is rejected."""
    [bare] = [
        str(row[0])
        for row in query_rows(
            started.home, "SELECT session_id FROM session_starts WHERE content = 'off'"
        )
    ]
    got = started.client.get(f"/sessions/{bare}?tab=commands")
    assert "This session cannot be frozen. It was recorded without content." in got.words
    assert 'value="freeze"' not in got.html
    assert started.client.press(f"/sessions/{bare}/jobs", action="freeze").status == 404
    assert started.programs == []


def test_a_shared_dashboard_runs_no_commands(home: Home, commands: Commands) -> None:
    """If others may have access, the page shows commands for copying only, and rejects forms."""
    options = DashboardOptions(port=0, loopback_address=True)
    with serving(home, commands, options) as client:
        session_id = str(query_rows(home, "SELECT session_id FROM session_starts")[0][0])
        html = client.get(f"/sessions/{session_id}?tab=commands").html
        assert SHARED[1:] in html
        assert 'method="post" action="/sessions/' not in html
        refused = client.press(f"/sessions/{session_id}/jobs", action="freeze")
        assert (refused.status, SHARED in refused.html) == (404, True)


def test_jobs_are_limited_and_end_with_the_dashboard(
    commands: Commands, programs: list[FakeProgram]
) -> None:
    """A fixture is used by one command at a time, the number of concurrent commands is limited, and all of them are
    ended with the dashboard.
    """
    runner = JobRunner(commands)
    for number in range(MOST_RUNNING):
        runner.start("s", "replay", Path(f"{number}"), [], "")
    with pytest.raises(UsageError, match="a command for this fixture is running"):
        runner.start("s", "replay", Path("0"), [], "")
    with pytest.raises(UsageError, match=f"{MOST_RUNNING} commands are running"):
        runner.start("s", "replay", Path("other"), [], "")
    first = runner.jobs_of("s")[-1]
    runner.cancel(first)
    _wait(lambda: first.state == "canceled")
    runner.close()
    runner.wait()
    assert {job.state for job in runner.jobs_of("s")} == {"canceled"}
    assert all(each.is_interrupted for each in programs)
    with pytest.raises(UsageError, match="the dashboard is shutting down"):
        runner.start("s", "replay", Path("other"), [], "")


def test_a_job_that_never_ends_is_ended(commands: Commands) -> None:
    """A command that reaches the time limit is ended."""
    runner = JobRunner(commands, limit_seconds=0)
    job = runner.start("s", "replay", Path("x"), [], "")
    _wait(lambda: job.state == "timed out")
    runner.wait()


@pytest.mark.slow
def test_a_real_process_is_started(tmp_path: Path) -> None:
    """The dashboard runs this installation of agentobs as a child process, and knows its output and exit code."""
    commands = dashboard_commands(tmp_path / "home", Path("fixtures"))
    assert commands.start is not None
    program = commands.start(["freeze", "--", HOSTILE])
    program.has_ended.wait(60)
    program.interrupt()
    assert program.exit_code not in (0, None)
    assert (
        HOSTILE in program.stderr.text() + program.stdout.text() or "home" in program.stderr.text()
    )


def test_a_command_ends_if_the_dashboard_is_killed(home: Home) -> None:
    """A command that would never end is interrupted when the other end of its standard input is closed."""
    command = [sys.executable, "-m", "agentobs.cli.child_command"]
    arguments = [f"--home={home.path}", "tail"]
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()


def _wait(condition: Callable[[], bool]) -> None:
    """Wait until the thread of a job has done its work; a hang is ended by the timeout of the test."""
    while not condition():
        threading.Event().wait(0.01)

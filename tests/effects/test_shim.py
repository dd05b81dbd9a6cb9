"""The shim of commands changes nothing that a command or the program that runs it can notice."""

from __future__ import annotations

import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentobs.effects.commands.command_observer import CommandObserver
from agentobs.effects.commands.shim_files import SHELLS, ShimFiles, check_shims, write_shims
from agentobs.effects.commands.shim_reports import CommandReport, ShimReports, StartReport
from agentobs.effects.observation import Scope
from agentobs.errors import UsageError
from agentobs.recording.journal.home import open_home

STACK_HARD = resource.getrlimit(resource.RLIMIT_STACK)[1]
STACK_BYTES = 64 * 1024 * 1024


class Observed:
    """Shims, and the reports that have arrived."""

    def __init__(self) -> None:
        self.plain = dict(os.environ)
        self.files: ShimFiles = write_shims(self.plain, ["env"])
        self.environment = dict(self.plain)
        self.files.put_into(self.environment)
        self._reports: list[CommandReport] = []
        self._changed = threading.Condition()
        self.receiver = ShimReports(self.files.socket, self._receive)

    def _receive(self, report: CommandReport) -> None:
        with self._changed:
            self._reports.append(report)
            self._changed.notify()

    def take(self, count: int = 1) -> list[CommandReport]:
        """Wait for reports, and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._reports) >= count, 30)
            taken, self._reports = self._reports, []
            return taken


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    each = Observed()
    yield each
    each.receiver.stop()
    each.files.remove()


SCRIPTS = {
    "streams": "echo out; echo err >&2; exit 200",
    "stdin": "cat; exit 0",
    "binary": r"printf '\000\377\n\001'",
    "killed": "kill -KILL $$",
    "terminated": "kill -TERM $$",
    "arguments": 'printf "<%s>" "$0" "$@"',
    "background": "(sleep 0.2; echo later) & echo now",
    "closed reader": "yes | head -n 2; echo ${PIPESTATUS[0]}",
    "descriptors": "ls /proc/self/fd | wc -l; echo to five >&$FIVE",
    "missing": "no-such-program-here",
    "terminal": "test -t 0; echo $?; test -t 1; echo $?",
    "closed input": "sh -c 'cat 2>/dev/null; echo $?' <&-",
    "ignored": "trap '' PIPE; trap -p; ulimit -n",
    "closed streams": "echo out; exec >&- 2>&-; exit 5",
    "daemon": "setsid /bin/sh -c 'sleep 0.2; echo later' & exit 6",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_gives_the_same(observed: Observed, tmp_path: Path, name: str) -> None:
    """Exit code, signal and both streams are those of the command without a shim, and its report has them."""
    results = []
    for environment in (observed.plain, observed.environment):
        with (tmp_path / "five").open("w+") as five:
            done = subprocess.run(
                ["bash", "-c", SCRIPTS[name], "zero", "a b", "'\"\\\n"],
                env={**environment, "FIVE": str(five.fileno())},
                input=b"input" * 50_000 if name == "stdin" else b"",
                capture_output=True,
                pass_fds=(five.fileno(),),
                timeout=60,
            )
            five.seek(0)
            results.append((done.returncode, done.stdout, done.stderr, five.read()))
    assert results[0] == results[1]
    [report] = observed.take()
    assert report.end is not None
    assert (-report.end.signal or report.end.exit_code) == results[0][0]
    if name not in (
        "background",
        "daemon",
    ):  # what a child writes after the end of the command is not part of it
        assert report.end.stdout.total == len(results[0][1])
        assert report.end.stderr.total == len(results[0][2])
    assert report.start.arguments[1:] == ("-c", SCRIPTS[name], "zero", "a b", "'\"\\\n")


@pytest.mark.parametrize(
    "settings",
    [
        {"PERL_UNICODE": "SDA"},
        {"PERL5OPT": "-w -Mstrict"},
        {"PERLIO": ":utf8"},
        {"LC_ALL": "xx_YY.UTF-8"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_settings_of_perl_do_not_change_a_command(
    observed: Observed, settings: dict[str, str]
) -> None:
    """The shim is a Perl program, but what the environment of the command says about Perl has no effect on it."""
    results = [
        subprocess.run(
            ["sh", "-c", r"printf 'h\303\251\377%s' \"$1\"; echo err >&2", "sh", "\xe9"],
            env={**environment, **settings},
            capture_output=True,
            timeout=60,
        )
        for environment in (observed.plain, observed.environment)
    ]
    [report] = observed.take()
    assert (results[1].returncode, results[1].stdout, results[1].stderr) == (
        0,
        results[0].stdout,
        results[0].stderr,
    )
    assert report.start.arguments[-1] == "\xe9"


def test_the_environment_of_a_command_is_unchanged(observed: Observed) -> None:
    done = subprocess.run(["env", "-0"], env=observed.environment, capture_output=True, timeout=60)
    assert done.stdout.split(b"\0")[:-1] == [
        f"{name}={value}".encode() for name, value in observed.environment.items()
    ]
    observed.take()


def test_a_terminal_stays_a_terminal(observed: Observed) -> None:
    """A stream that is a terminal is not copied."""
    main, other = pty.openpty()
    script = "test -t 0 && test -t 1 && test -t 2 && echo yes"
    done = subprocess.run(
        ["sh", "-c", script], env=observed.environment, stdin=other, stdout=other, stderr=other
    )
    assert (done.returncode, os.read(main, 100)) == (0, b"yes\r\n")
    os.close(main)
    os.close(other)
    [report] = observed.take()
    assert report.start.streams == ("terminal", "terminal", "terminal")


@pytest.mark.parametrize("is_group", [False, True])
def test_signals_reach_the_command(observed: Observed, is_group: bool) -> None:
    """A signal to the process or to its group reaches the command, which decides how it ends."""
    process = subprocess.Popen(
        ["bash", "-c", "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done"],
        env=observed.environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if is_group:
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    assert (process.stdout.read(), process.wait(60)) == (b"caught\n", 9)
    process.stdout.close()
    observed.take()


def test_a_shim_that_is_killed_takes_its_command_with_it(observed: Observed) -> None:
    """As without a shim, nothing of the command is left; the report has no end."""
    process = subprocess.Popen(
        ["bash", "-c", "echo $$; exec sleep 60"], env=observed.environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    command = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    assert (process.stdout.read(), process.wait(60)) == (b"", -signal.SIGKILL)
    process.stdout.close()
    [report] = observed.take()
    assert (report.end, report.is_running) == (None, False)
    assert select.select([command], [], [], 60)[0] == [command]
    os.close(command)


def test_files_are_not_copied(observed: Observed, tmp_path: Path) -> None:
    """A command writes into its file itself; the file is read afterwards, from where the command began to write."""
    file = tmp_path / "log"
    file.write_text("before\n")
    with file.open("a") as log:
        subprocess.run(
            ["sh", "-c", "echo out; echo err >&2"],
            env=observed.environment, stdout=log, stderr=log,
        )  # fmt: skip
    assert file.read_text() == "before\nout\nerr\n"
    [report] = observed.take()
    assert report.end is not None
    assert report.end.is_merged
    assert report.end.stdout.head == b"out\nerr\n"


def test_both_streams_in_one_pipe_keep_their_order(observed: Observed) -> None:
    script = "for i in 1 2 3 4 5; do echo $i; echo e$i >&2; done"
    done = subprocess.run(
        ["sh", "-c", script], env=observed.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )  # fmt: skip
    assert done.stdout == b"".join(b"%d\ne%d\n" % (i, i) for i in range(1, 6))
    [report] = observed.take()
    assert report.end is not None
    assert (report.end.is_merged, report.end.stdout.head) == (True, done.stdout)


def test_a_command_runs_without_a_recorder(tmp_path: Path) -> None:
    """If no receiver listens, or the shim's directory is gone, the command still runs."""
    environment = dict(os.environ)
    files = write_shims(environment)
    files.put_into(environment)
    command = ["bash", "-c", "echo $0 ran; exit 4"]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (4, b"bash ran\n")
    assert files.missed() == 1
    files.remove()
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (4, b"bash ran\n")


def test_a_path_without_the_program(observed: Observed, tmp_path: Path) -> None:
    """The program that PATH led to at the start is run."""
    environment = {**observed.environment, "PATH": str(observed.files.directory / "path")}
    done = subprocess.run(["sh", "-c", "exit 5"], env=environment)
    assert done.returncode == 5
    observed.take()


def test_each_shell_runs_its_command(observed: Observed) -> None:
    for name in (each for each in SHELLS if each in observed.files.programs):
        done = subprocess.run(
            [name, "-c", "echo from $0; exit 6"] if name != "fish" else [name, "-c", "exit 6"],
            env=observed.environment,
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (6, b"")
        [report] = observed.take()
        assert report.start.program == shutil.which(name, path=observed.plain["PATH"])


SPELLINGS = {
    "twice": "{shims}:{shims}:{path}",
    "slash": "{shims}/:{path}",
    "dots": "{shims}/../path:{path}",
    "link": "{link}:{shims}:{path}",
    "relative": "path:{path}",
    "empty": "",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_shim_does_not_run_itself(observed: Observed, tmp_path: Path, spelling: str) -> None:
    """However PATH names the directory of the shims, and however often, the program behind them runs once."""
    shims = observed.files.directory / "path"
    (tmp_path / "link").symlink_to(shims)
    path = SPELLINGS[spelling].format(
        shims=shims, link=tmp_path / "link", path=observed.plain["PATH"]
    )
    command = [str(shims / "bash"), "-c", "echo ran; exit 3"]
    done = subprocess.run(
        command,
        env={**observed.plain, "PATH": path},
        cwd=observed.files.directory,
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"ran\n", b"")
    assert len(observed.take()) == 1


def test_a_recording_in_a_recording_runs_each_command_once(observed: Observed) -> None:
    """The shims of both are in PATH, and each passes on to the next one."""
    inner = write_shims(observed.environment)
    environment = dict(observed.environment)
    inner.put_into(environment)
    reports: list[CommandReport] = []
    receiver = ShimReports(inner.socket, reports.append)
    done = subprocess.run(
        ["bash", "-c", "exit 3"], env=environment, capture_output=True, timeout=30
    )
    receiver.stop()
    inner.remove()
    [outer] = observed.take()
    assert (done.returncode, len(reports)) == (3, 1)
    assert outer.start.program == shutil.which("bash", path=observed.plain["PATH"])


def test_the_longest_list_of_arguments(observed: Observed) -> None:
    """Linux accepts 6 MiB of arguments if the stack may grow; all of them are reported."""
    arguments = ["x" * 20] * 190_000
    done = subprocess.run(
        ["bash", "-c", "echo $#", "name", *arguments],
        env=observed.environment,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_HARD)),
    )
    assert (done.returncode, done.stdout) == (0, b"190000\n")
    [report] = observed.take()
    assert report.start.arguments[4:] == tuple(arguments)


def test_the_shell_variable_leads_to_a_shim(tmp_path: Path) -> None:
    """Agents that run the value of SHELL are observed; the shell has its own path as its name."""
    environment = {**os.environ, "SHELL": "/bin/bash"}
    files = write_shims(environment)
    files.put_into(environment)
    reports: list[CommandReport] = []
    receiver = ShimReports(files.socket, reports.append)
    done = subprocess.run(
        [environment["SHELL"], "-c", "echo $0"], env=environment, capture_output=True
    )
    receiver.stop()
    files.remove()
    assert done.stdout == b"/bin/bash\n"
    assert [each.start.program for each in reports] == ["/bin/bash"]


def test_commands_that_still_run_at_the_end(tmp_path: Path) -> None:
    """They are reported as running, and are not stopped."""
    environment = dict(os.environ)
    files = write_shims(environment)
    files.put_into(environment)
    reports: list[CommandReport] = []
    receiver = ShimReports(files.socket, reports.append)
    process = subprocess.Popen(
        ["sh", "-c", "echo ready; read line; echo got $line"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    receiver.stop()
    files.remove()
    assert [(each.end, each.is_running) for each in reports] == [(None, True)]
    assert process.communicate(b"it\n")[0] == b"got it\n"
    assert process.returncode == 0


def test_problems_are_found_before_the_command_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without Perl or a shell, on a full disk, or if shims cannot be executed, there is one error."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(UsageError, match="Perl"):
        write_shims(dict(os.environ))
    monkeypatch.undo()
    with pytest.raises(UsageError, match="not the name of a program"):
        write_shims(dict(os.environ), ["/bin/ls"])
    with pytest.raises(UsageError, match="no shell"):
        write_shims({"PATH": str(tmp_path), "SHELL": "/bin/false"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        patch.setattr(Path, "chmod", full)
        scope = Scope(open_home(tmp_path / "home"), tmp_path, lambda: None, dict(os.environ))
        with pytest.raises(UsageError, match="cannot be written: No space left on device"):
            CommandObserver().start(scope)
        assert list(tmp_path.glob("agentobs-*")) == []
    files = write_shims(dict(os.environ))
    (files.directory / "path" / "sh").write_text("#!/no/such/interpreter\n")
    with pytest.raises(UsageError, match="does not work"):
        check_shims(files, dict(os.environ))
    files.remove()


def test_a_receiver_that_fails_does_not_stop_the_reports(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all later commands would wait until their reports time out."""
    monkeypatch.setattr("agentobs.errors._reported", set())
    received: list[CommandReport] = []

    def receive(report: CommandReport) -> None:
        received.append(report)
        raise KeyError("a bug")

    files = write_shims(observed.plain)
    environment = dict(observed.plain)
    files.put_into(environment)
    receiver = ShimReports(files.socket, receive)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for code in (3, 4):
            assert subprocess.run(["sh", "-c", f"exit {code}"], env=environment).returncode == code
        receiver.stop()
    assert [each.end.exit_code for each in received if each.end] == [3, 4]
    assert ["an effect is not recorded: KeyError" in str(each.message) for each in warned] == [True]
    assert files.missed() == 0
    files.remove()


def started(pid: int, ancestors: tuple[int, ...], started_ns: int) -> StartReport:
    streams = ("pipe", "pipe", "pipe")
    return StartReport("sh", "/bin/sh", pid, ancestors, streams, started_ns, "/", ("sh",))


def test_a_process_with_the_number_of_an_ended_shim_is_no_parent(tmp_path: Path) -> None:
    """Process numbers are reused; a report may also arrive after the end of the command that ran it."""
    reports = ShimReports(tmp_path / "socket", lambda _: None)
    parent_id, _ = reports.identify(started(100, (1,), 10))
    _, while_running = reports.identify(started(101, (100, 1), 11))
    reports.note_end(100, parent_id, 20)
    _, arrived_late = reports.identify(started(102, (100, 1), 19))
    _, reused = reports.identify(started(103, (100, 1), 30))
    reports.stop()
    assert (while_running, arrived_late, reused) == (parent_id, parent_id, None)


def test_commands_that_cannot_wait_for_the_first_session_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentobs.errors._reported", set())
    monkeypatch.setattr("agentobs.effects.commands.command_observer.WAITING_MAX", 2)
    observer, environment = CommandObserver(), dict(os.environ)
    observer.start(Scope(open_home(tmp_path), tmp_path, lambda: None, environment, []))
    for _ in range(5):
        subprocess.run(["sh", "-c", ":"], env=environment, check=True)
    with pytest.warns(RuntimeWarning, match="before the first request: 3"):
        observer.stop()

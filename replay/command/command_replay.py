"""Runs a command against a served fixture, and compares the run with the recorded one.

The command runs in a copy of its working directory. The variables of its environment direct clients of the provider to
a server that answers from the fixture (`replay.served`), and all other HTTP clients to a proxy that refuses them. The
first request that was not recorded ends the run.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.proxy.client_variables import PROVIDER_URL, base_url_variables, upstreams
from agentobs.proxy.node_redirection import node_routes, node_variables
from agentobs.recording.wire.provider_server import (
    Fault,
    ServedProvider,
    ServeOptions,
    parse_fault,
)
from agentobs.records.display import printable
from agentobs.records.exchanges import Recording
from replay.command.child_program import NATURAL_SECONDS, ChildProgram, stopped_by_signals
from replay.command.continuation import Continuation, Continued, ReplayedPart
from replay.command.recorded_command import RecordedCommand, command_of
from replay.command.refusing_proxy import RefusingProxy
from replay.fixture.format import Fixture, as_recording, load
from replay.scenario.script import Scripted
from replay.served.spine_script import SpineScript
from replay.served.verdict import Verdict
from replay.workspace.file_difference import FileDifference
from replay.workspace.recorded_workspace import RecordedWorkspace, workspace_of
from replay.workspace.scratch import Scratch, temporary_scratch

EndedBy = Literal["exit", "miss", "turn", "change", "timeout"]
"""The reason for the end of a command: its own exit; a request that was not recorded; the turn after which to stop; the
first request that differs, if the run was until a change; its time limit.
"""
LINES_MAX = 20
"""The maximum number of lines of the standard error that are shown in a report. Our choice."""
KEY_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
HOME_FOLDER = ".agentobs"
"""The default folder of recordings, which the command does not need."""
AWS_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK")
AWS_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
DUMMY_AWS_KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIDREPLAY",
    "AWS_SECRET_ACCESS_KEY": "a-made-up-key",
}
"""Dummy credentials for clients of Bedrock, which sign their requests."""
DUMMY_KEY = "sk-ant-replay-a-made-up-key"
"""The key for clients that require one. It is only sent to the server of this replay."""


@dataclass(frozen=True, slots=True)
class CommandReplay:
    """The run of a command against a fixture."""

    name: str
    """The name of the recorded session."""
    command: tuple[str, ...] = field(repr=False)
    """The program and its arguments."""
    exit_code: int
    """Its exit code; if a signal ended it, 128 plus the number of the signal."""
    recorded_exit_code: int | None
    """The recorded exit code; None if it is not known."""
    stdout: str = field(repr=False)
    """Its standard output, at most the last MiB."""
    stderr: str = field(repr=False)
    """Its standard error, at most the last MiB."""
    verdict: Verdict = field(repr=False)
    """How its requests compare to the recorded ones."""
    refused_hosts: tuple[str, ...]
    """The hosts with ports that it tried to reach through a proxy."""
    ended_by: EndedBy
    until_turn: int | None = None
    """The last turn that was answered from the fixture; None for all turns."""
    until_change: int | None = None
    """The turn after which the command had to differ from its recording; None if it had to repeat it."""
    is_reached: bool = True
    """Whether the recorded responses up to that turn were sent."""
    session_ids: tuple[str, ...] = ()
    """The IDs of the sessions that were recorded because the run continued live."""
    files: FileDifference | None = field(default=None, repr=False)
    """How the files at the end differ from those at the end of the recording; None if they were not compared: the
    fixture has no files, or only a part of the recording was repeated.
    """
    restored: int | None = None
    """The number of files that differed from the recorded ones when the run continued live, and were therefore
    replaced; None if the fixture has no files.
    """
    directory: Path | None = None
    """The directory with the files of the run, if it was kept."""

    @property
    def matched(self) -> bool:
        """Whether it made exactly the recorded requests, apart from drift, and ended with the recorded exit code."""
        return not self.problems(allow_drift=True)

    @property
    def is_exact(self) -> bool:
        """Whether it matched without drift."""
        return not self.problems()

    def problems(self, *, allow_drift: bool = False) -> list[str]:
        """Return the differences between the run and the recording, one line each."""
        if self.until_change is not None:
            return self._problems_until_change(self.until_change)
        notable = self.verdict.notable
        if allow_drift:
            notable = [each for each in notable if each.kind != "drift" or each.is_ambiguous]
        found = [each.line() for each in notable]
        if self.verdict.unused and not self.verdict.count("miss"):
            numbers = ", ".join(map(str, self.verdict.unused[:LINES_MAX]))
            found.append(f"recorded requests that were not sent: {numbers}")
        if self.files is not None and not self.files.is_equal:
            found.append(self.files.line())
        return [*found, *self._bad_ending()]

    def _bad_ending(self) -> list[str]:
        if self.ended_by == "timeout":
            return [_TIMEOUT]
        is_complete = self.ended_by == "exit" and self.until_turn is None
        has_other_code = self.recorded_exit_code not in (None, self.exit_code)
        if is_complete and has_other_code and not self.verdict.scripted:
            return [
                f"the exit code was {self.exit_code}, in the recording {self.recorded_exit_code}"
            ]
        return []

    def _problems_until_change(self, turn: int) -> list[str]:
        """Return why no change after a turn was found, or why the command failed."""
        if self.ended_by == "timeout":
            return [_TIMEOUT]
        if self.ended_by == "miss":
            found = [each.line() for each in self.verdict.requests if each.kind == "miss"]
            return [f"the command took another path before turn {turn} was answered", *found]
        if self.ended_by != "exit":
            return []
        if self.exit_code != 0:
            how = "as recorded, " if self.exit_code == self.recorded_exit_code else ""
            return [f"the command failed {how}with exit code {self.exit_code}"]
        if not self.is_reached:
            return [f"the command ended before turn {turn} was answered"]
        if self.recorded_exit_code == 0 and not self.verdict.unused:
            return ["the command repeated its recording to the end"]
        return []

    def check(self, *, allow_drift: bool = False) -> None:
        """Raise if the run differs from the recording.

        Args:
            allow_drift: whether requests at a recorded place of the conversation may differ in other parts, such as
                the result of a tool.

        Raises:
            CommandDivergenceError: it differs.
        """
        if self.problems(allow_drift=allow_drift):
            raise CommandDivergenceError(self)

    def text(self, *, explain: bool = False) -> str:
        """Return a report: the problems, the differences of requests and files, and the end of the standard error.

        Args:
            explain: whether to include the diff of files that differ at the end.
        """
        problems = self.problems()
        word = "MATCHED" if not problems else "DRIFTED" if self.matched else "DIVERGED"
        endings = self._bad_ending()
        if self.until_change is not None:
            word, endings = "FAILED" if problems else "CHANGED", problems
        lines = [f"{word}  {printable(self.name)}  {self.verdict.line()}"]
        details = [*self.verdict.explanation().splitlines()[1:], *endings]
        lines += [f"  {each}" for each in details]
        if self.files is not None:
            lines.append(f"  {self.files.line()}")
            lines += [f"    {each}" for each in self.files.patch_lines()] if explain else []
        if self.refused_hosts:
            lines += ["", f"  refused connections: {printable(', '.join(self.refused_hosts))}"]
        if not self.matched and (shown := self.stderr.splitlines()[-LINES_MAX:]):
            lines += ["", "  standard error:", *(f"    {printable(each)}" for each in shown)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON value, without the output of the command."""
        return {
            "name": self.name,
            "result": "matched" if self.is_exact else "drifted" if self.matched else "diverged",
            "problems": self.problems(),
            "ended_by": self.ended_by,
            "session_ids": list(self.session_ids),
            "exit_code": self.exit_code,
            "recorded_exit_code": self.recorded_exit_code,
            "refused_hosts": list(self.refused_hosts),
            "files": None if self.files is None else self.files.as_json(),
            "verdict": self.verdict.as_json(),
        }

    def json(self) -> str:
        """Return the result as JSON text."""
        return json.dumps(self.as_json(), ensure_ascii=False)


class CommandDivergenceError(AgentobsError):
    """A command differs from its recording.

    Attributes:
        divergence: the run, whose `text()` is the report.
    """

    def __init__(self, ran: CommandReplay) -> None:
        self.divergence = ran
        super().__init__(f"the command differs from its recording: {ran.problems()[0]}")

    def __str__(self) -> str:
        return self.divergence.text(explain=True)


_TIMEOUT = "the command did not end within its time limit"


def run_command(
    fixture: Fixture | Recording | str | Path,
    command: Sequence[str] | None = None,
    *,
    exit_code: int | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 300.0,
    stdin: bytes = b"",
    in_place: bool = False,
    workspace: RecordedWorkspace | None = None,
    output: str | Path | None = None,
    until_turn: int | None = None,
    until_change: int | None = None,
    then: Sequence[Scripted] | Continuation = (),
    faults: Sequence[Fault | str] = (),
    pace: float | None = None,
) -> CommandReplay:
    """Run a command whose requests to the provider are answered from a fixture.

    Args:
        fixture: a fixture, its path, or a recording.
        command: the program and its arguments; None for the recorded command.
        exit_code: the recorded exit code, if the fixture does not contain it.
        cwd: the working directory, which is copied first; None for the recorded files of the fixture if it has any,
            otherwise the current directory.
        env: additional environment variables of the command.
        timeout: its time limit, in seconds; None for no limit.
        stdin: its standard input.
        in_place: whether it runs in `cwd` itself instead of a copy.
        workspace: recorded files to start from, instead of those of the fixture.
        output: a new directory for the recorded files, which is kept; None for a temporary directory.
        until_turn: the last turn of the main conversation that is answered from the fixture; the run ends at the next.
        until_change: the turn of the main conversation in which the recorded command failed. The run ends at the first
            request after its response that differs from the recording, apart from the text of results that are errors
            both times. It is a problem if there is no such request and the command fails again.
        then: scripted responses after that turn, or after the recording, such as `replay.says("Stop.")`;
            `replay.Live()` to continue with the real provider, which costs money.
        faults: failures to inject, such as `status:529@2` or `cut:3@1`; the number is that of the request.
        pace: 1.0 sends responses as fast as recorded, 2.0 twice as fast, 0.0 without pauses. None sends them as fast as
            recorded while a background task runs whose end the client reported, otherwise without pauses.

    Returns:
        How the run compares to the recording. It does not raise if they differ; see `CommandReplay.check`.

    Raises:
        UsageError: the recording has no command, the command cannot be started, or a run that continues live sent no
            request or one without credentials.
    """
    loaded = load(fixture) if isinstance(fixture, str | Path) else fixture
    live = None if isinstance(then, Sequence) else then
    _check(loaded, until_turn, until_change, is_live=live is not None)
    if live is not None and until_turn is not None and isinstance(loaded, Fixture):
        loaded = live.prepared(loaded, until_turn)
    recording = as_recording(loaded) if isinstance(loaded, Fixture) else loaded
    recorded = _command(recording, command, exit_code)
    if isinstance(loaded, Fixture) and workspace is None:
        workspace = workspace_of(loaded)
    if cwd is not None or in_place:
        workspace = None
    source = Path.cwd() if cwd is None else Path(cwd)
    parsed = tuple(parse_fault(each) if isinstance(each, str) else each for each in faults)
    mark = None if live is None else world.random_bytes(16).hex()
    ending = _Ending()
    replayed_files = _ReplayedFiles(workspace, None if live is None else until_turn)
    script = SpineScript(
        recording,
        until_turn=until_turn,
        until_change=until_change,
        then=then if isinstance(then, Sequence) else (),
        live_mark=mark,
        before_turn=replayed_files.before_turn,
        on_end=ending.end,
        ends_at_miss=True,
        paces_tasks=pace is None,
        ends_after=_ends_after(loaded),
    )
    if live is not None:
        _check_turn(script, until_turn, recording.name)
    options = ServeOptions(pace=1.0 if pace is None else pace, faults=parsed)
    continued: Continued | None = None
    with ExitStack() as stack:
        provider = stack.enter_context(ServedProvider(recording, options, script=script))
        network = stack.enter_context(RefusingProxy())
        directory = stack.enter_context(
            replayed_files.directory(output)
            if workspace is not None
            else _directory(source, in_place=in_place)
        )
        recorded = dataclasses.replace(recorded, argv=recorded.in_directory(str(directory)))
        base = {**world.environment(), **(env or {}), "PWD": str(directory)}
        if live is not None and until_turn is not None and mark and isinstance(loaded, Fixture):
            part = ReplayedPart(
                loaded,
                until_turn,
                recorded,
                directory,
                base,
                provider.url,
                mark,
                ending.end,
                replayed_files.root,
            )
            continued = stack.enter_context(live.opened(part))
            environment = {**base, **network.variables(), **continued.variables}
        else:
            environment = _environment(recorded, provider.url, network, base)
        stack.enter_context(stopped_by_signals())
        child = ChildProgram(recorded.argv, directory, environment, stdin)
        ending.child = child
        try:
            has_ended = child.has_ended.wait(timeout)
            child.stop(NATURAL_SECONDS if ending.reasons else 0.0)
        except BaseException:
            child.stop()
            raise
        code = child.exit_code
        assert code is not None
        has_exited = has_ended and not ending.reasons
        is_whole = (
            has_exited and until_turn is None and until_change is None and not (then or faults)
        )
        files = replayed_files.difference() if is_whole else None
        session_ids = () if continued is None else continued.close(code)
    if replayed_files.problem is not None:
        raise replayed_files.problem
    if continued is not None and continued.problem is not None:
        failed_alone = code != 0 and not ending.reasons
        raise _own_error(continued.problem, code, child) if failed_alone else continued.problem
    return CommandReplay(
        name=recording.name,
        command=recorded.argv,
        exit_code=code,
        recorded_exit_code=recorded.exit_code,
        stdout=child.stdout.text(),
        stderr=child.stderr.text(),
        verdict=script.result(),
        refused_hosts=network.refused,
        ended_by=_ended_by(ending.reasons, has_ended=has_ended),
        until_turn=until_turn,
        until_change=until_change,
        is_reached=script.has_answered(until_change or until_turn or 0),
        session_ids=session_ids,
        files=files,
        restored=replayed_files.restored,
        directory=None if output is None else replayed_files.root,
    )


def _own_error(problem: UsageError, code: int, child: ChildProgram) -> UsageError:
    """Return the error of a command that failed before its first request, at the place of `problem`."""
    lines = [each for each in child.stderr.text().splitlines() if each.strip()]
    last = f": {printable(lines[-1].strip())[:200]}" if lines else ""
    return UsageError(
        f"the command ended with exit code {code} before its first request{last}",
        where=problem.where,
        todo="Check its paths and its environment; files outside of the workspace are not recorded",
    )


class _ReplayedFiles:
    """The recorded files in which a command runs; without any, all methods do nothing."""

    def __init__(self, workspace: RecordedWorkspace | None, live_turn: int | None) -> None:
        """Prepare them.

        Args:
            workspace: the recorded files.
            live_turn: the last replayed turn of a run that continues live.

        Raises:
            UsageError: there are no files for this turn.
        """
        self._workspace, self._live_turn = workspace, live_turn
        self._tree = workspace.at_turn(live_turn) if workspace and live_turn is not None else None
        self._scratch: Scratch | None = None
        self.restored: int | None = None
        """The number of files that were changed to the recorded ones before the run continued live."""
        self.problem: AgentobsError | None = None
        """Why the files could not be changed."""

    @property
    def root(self) -> Path | None:
        """The directory with the files; None before it is created."""
        return self._scratch.root if self._scratch is not None else None

    @contextmanager
    def directory(self, output: str | Path | None) -> Iterator[Path]:
        """Yield the working directory of the command.

        Raises:
            UsageError: the recorded files cannot be read, or the output is not a new directory.
        """
        assert self._workspace is not None
        with ExitStack() as stack:
            if output is None:
                self._scratch = stack.enter_context(temporary_scratch(self._workspace))
            else:
                self._scratch = Scratch(self._workspace, Path(output))
                stack.callback(self._scratch.close)
            yield self._scratch.directory

    def before_turn(self, turn: int) -> None:
        """Change the files to the recorded ones before the response of the last replayed turn is sent."""
        if turn == self._live_turn and self._tree is not None and self._scratch is not None:
            try:
                self.restored = self._scratch.restore(self._tree)
            except AgentobsError as error:
                self.problem = error
                raise

    def difference(self) -> FileDifference | None:
        """Return how the files differ from those at the end of the recording; None if those are not known."""
        if self._workspace is None or self._workspace.end is None or self._scratch is None:
            return None
        return self._scratch.difference(self._workspace.end)


class _Ending:
    """The requests that ended a command, and the command."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.child: ChildProgram | None = None

    def end(self, reason: str) -> None:
        """End the command."""
        self.reasons.append(reason)
        assert self.child is not None  # it has sent a request
        self.child.has_ended.set()


def _check(
    loaded: Fixture | Recording, until_turn: int | None, until_change: int | None, *, is_live: bool
) -> None:
    """Check options that depend on each other.

    Raises:
        UsageError: they contradict each other.
    """
    if until_turn is not None and until_change is not None:
        raise UsageError(
            "until_turn and until_change cannot be combined",
            where="until_change",
            todo="Leave out one of them",
        )
    if is_live and (until_turn is None or not isinstance(loaded, Fixture)):
        raise UsageError(
            "a run can continue live only from a fixture, after a given turn",
            where="then",
            todo="Pass until_turn=N, and the fixture or its path",
        )


def _check_turn(script: SpineScript, turn: int | None, name: str) -> None:
    """Check the turn after which a run continues live.

    Raises:
        UsageError: the recording has no such turn.
    """
    turns = script.matcher.main_turns.values()
    if turn not in turns:
        raise UsageError(
            f"the recording has no turn {turn}",
            where=name,
            todo=f"It has turns 1 to {max(turns, default=0)}",
        )


def _ends_after(loaded: Fixture | Recording) -> dict[int, frozenset[int]] | None:
    """Return, for each request of a fixture by index, the concurrent requests whose responses ended first."""
    if isinstance(loaded, Recording):
        return None
    return {
        each.number - 1: frozenset(number - 1 for number in each.ends_after)
        for each in loaded.requests
    }


def _command(
    recording: Recording, command: Sequence[str] | None, exit_code: int | None
) -> RecordedCommand:
    """Return the command to run, and what is known about its recorded run.

    Raises:
        UsageError: there is no command.
    """
    recorded = command_of(recording)
    if command is None and recorded is None:
        raise UsageError(
            "the recording is not from a command",
            where=recording.name,
            todo="Pass the command to run, or replay the agent with `agentobs replay`",
        )
    if recorded is None or command is not None:
        known = recorded or RecordedCommand(())
        argv = tuple(command) if command is not None else known.argv
        recorded = dataclasses.replace(known, argv=argv)
    if not recorded.argv:
        raise UsageError("the command is empty", todo="Pass the program and its arguments")
    if exit_code is not None:
        recorded = dataclasses.replace(recorded, exit_code=exit_code)
    return recorded


@contextmanager
def _directory(source: Path, *, in_place: bool) -> Iterator[Path]:
    """Yield the directory in which to run: a copy with the same name, which is deleted at the end.

    Raises:
        UsageError: the directory does not exist, or cannot be copied.
    """
    source = source.resolve()
    if not source.is_dir():
        raise UsageError("this is not a directory", where=str(source))
    if source == Path(source.anchor) and not in_place:
        raise UsageError(
            "the root directory cannot be copied",
            where=str(source),
            todo="Change to the directory of the program first",
        )
    if in_place:
        yield source
        return
    scratch = Path(tempfile.mkdtemp(prefix="agentobs-replay-")).resolve()
    try:
        copy = scratch / (source.name or "root")
        try:
            shutil.copytree(source, copy, symlinks=True, ignore=partial(_not_copied, scratch))
        except (OSError, shutil.Error) as error:
            raise UsageError(
                f"the directory cannot be copied: {str(error)[:200]}",
                where=str(source),
                todo="Choose another directory, for example with `cd`",
            ) from error
        yield copy
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _not_copied(scratch: Path, folder: str, names: Sequence[str]) -> set[str]:
    """Return the names in a folder that are not copied: the copy itself, recordings, sockets, pipes and devices."""
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    modes = {name: Path(folder, name).lstat().st_mode for name in names}
    special = {name for name, mode in modes.items() if not any(is_kind(mode) for is_kind in kinds)}
    copies = {scratch.name} if Path(folder).resolve() == scratch.parent else set()
    return special | (({HOME_FOLDER} | copies) & set(names))


def _environment(
    recorded: RecordedCommand, url: str, network: RefusingProxy, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a command that gets no live responses.

    `base` is its environment outside of a replay.
    """
    environment = dict(base)
    if recorded.redirects_node:
        routes = node_routes(upstreams(environment, redirects=True), lambda _: url)
        environment |= node_variables(environment, {PROVIDER_URL: url, **routes})
    environment |= {**base_url_variables(url), **network.variables()}
    environment |= dict.fromkeys(recorded.base_url_variables, url)
    if not any(environment.get(name) for name in KEY_VARIABLES):
        environment[KEY_VARIABLES[0]] = DUMMY_KEY
    if recorded.uses_bedrock:
        if not any(environment.get(name) for name in AWS_KEY_VARIABLES):
            environment |= DUMMY_AWS_KEYS
        if not any(environment.get(name) for name in AWS_REGION_VARIABLES):
            environment[AWS_REGION_VARIABLES[0]] = "us-east-1"
    return environment


def _ended_by(endings: Sequence[str], *, has_ended: bool) -> EndedBy:
    if endings:
        ended: dict[str, EndedBy] = {"miss": "miss", "change": "change"}
        return ended.get(endings[0], "turn")
    return "exit" if has_ended else "timeout"

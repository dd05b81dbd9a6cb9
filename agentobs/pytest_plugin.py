"""The pytest plugin: `@pytest.mark.replay(FIXTURE)`, its fixtures and options, and divergences in reports.

Only pytest is imported until a test is marked. In particular, the package `replay` is not imported, because a project
may have its own package of that name.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from syrupy.assertion import SnapshotAssertion

    from agentobs.world import World
    from replay.command.command_replay import CommandReplay
    from replay.playback.replayer import Replayer
    from replay.pytest_plugin.client_fixtures import RecordedSession

_REPLAY = pytest.StashKey["Replayer"]()
_PENDING = pytest.StashKey[Any]()
_DIVERGED = pytest.StashKey[Any]()
_USED = pytest.StashKey["dict[str, set[str]]"]()
CHANGES = "replay update"
"""The property of a test report that contains the changes of its fixture."""
NOTE = "replay note"
"""The property of a test report that contains notes for the reader, even if the test passed."""
DIVERGENCE = "divergence"
"""The property of a test report that contains a divergence as JSON, which also appears in junit.xml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options, all of which are optional."""
    group = parser.getgroup("replay", "replay of recorded sessions")
    group.addoption(
        "--replay-update",
        nargs="?",
        const="show",
        type=_update_mode,
        metavar="write",
        help="Run marked tests live and show how their fixtures would change; =write writes the changes.",
    )
    group.addoption(
        "--replay-live",
        action="store_true",
        help="Run marked tests against the real provider: nothing is answered from a fixture.",
    )
    group.addoption(
        "--replay-unused",
        choices=("fail", "warn", "ignore"),
        default="fail",
        help="What to do about fixtures that no test uses, if a complete folder of tests was collected.",
    )
    group.addoption(
        "--replay-no-fork",
        action="store_true",
        help="Run marked tests in the pytest process, not in child processes; implied by --pdb and debuggers.",
    )
    parser.addini(
        "replay_fork",
        "run each marked test in its own process, if the platform can fork",
        type="bool",
        default=True,
    )


def _update_mode(value: str) -> str:
    if value not in ("show", "write"):
        raise argparse.ArgumentTypeError(
            f"invalid value {value!r}: use --replay-update=write, and put test paths before --replay-update"
        )
    return value


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "replay(*fixtures, **options): answer the agent under test from a recorded session, or from each session in a "
        "folder or pattern; paths are relative to the test's folder, otherwise to the root directory; the options are "
        "those of replay.ReplayOptions",
    )
    config.addinivalue_line(
        "markers",
        "replay_command(fixture, **options): the recorded command that the pytest fixture `replay_command` runs; the "
        "options are those of replay.run_command",
    )
    config.stash[_USED] = {}
    if config.option.replay_live and config.option.replay_update:
        raise pytest.UsageError(
            "--replay-live writes no fixture, so it cannot be combined with --replay-update; remove one of them"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, obj: object) -> None:
    """Replay a marked test even if it requests no fixture of this plugin, so that it never runs live by mistake."""
    if _is_marked(getattr(collector, "own_markers", ())):
        collector.add_marker(pytest.mark.usefixtures("replay"))
    marks = getattr(obj, "__dict__", {}).get("pytestmark", ())
    if isinstance(marks, list) and _is_marked(marks):
        pytest.mark.usefixtures("replay")(obj)


def _is_marked(marks: Any) -> bool:
    """Return whether markers contain `replay`, but do not request the `replay` fixture yet."""
    names = [(mark.name, mark.args) for mark in marks if isinstance(mark, pytest.Mark)]
    marked = any(name == "replay" for name, _ in names)
    return marked and ("usefixtures", ("replay",)) not in names


def _is_shadowed() -> bool:
    """Return whether the name `replay` belongs to another package, for example in the root directory of a project."""
    spec = importlib.util.find_spec("replay")
    return spec is None or spec.origin != str(Path(__file__).parents[1] / "replay" / "__init__.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with each fixture if its marker selects several."""
    mark = metafunc.definition.get_closest_marker("replay")
    if mark is None or "_replay_place" not in metafunc.fixturenames or _is_shadowed():
        return
    from agentobs.errors import UsageError
    from replay.pytest_plugin.marker import several_fixtures

    try:
        found = several_fixtures(mark, metafunc.definition.path.parent, metafunc.config.rootpath)
    except UsageError:
        return  # the pytest fixture fails with this error
    if found is not None:
        metafunc.parametrize("_replay_place", found.values(), ids=list(found), indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Record the fixtures that a marker selects, even if the test will be deselected."""
    marks = [item.get_closest_marker(name) for name in ("replay", "replay_command")]
    for mark in (mark for mark in marks if mark is not None and not _is_shadowed()):
        from replay.pytest_plugin.unused_fixtures import note_used

        note_used(item.config.stash[_USED], mark, item.path.parent, item.config.rootpath)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Unless isolation is switched off, run each marked test in a separate process."""
    config = session.config
    marked = any(item.get_closest_marker("replay") is not None for item in session.items)
    if not marked or config.option.collectonly or _is_shadowed():
        return
    from replay.isolation.isolation import Isolation, is_switched_off

    if not is_switched_off(config):
        config.pluginmanager.register(Isolation(session), "agentobs-isolation")
        return
    from replay.agent_code import leftover_state

    leftover_state.observe()


@pytest.fixture
def _replay_place(request: pytest.FixtureRequest) -> Path:
    """Return the path of the fixture that a test replays."""
    if _is_shadowed():
        pytest.fail(
            "another package named `replay` hides the one of agentobs, so this test cannot be replayed: rename that "
            "package, or keep its parent directory out of sys.path",
            pytrace=False,
        )
    from agentobs.errors import UsageError
    from replay.pytest_plugin.marker import located, paths_of, several_fixtures

    if hasattr(request, "param"):
        place: Path = request.param
        return place
    mark, where = _mark(request), (request.path.parent, request.config.rootpath)
    with _failing_on_errors():
        [path, *_] = paths_of(mark)
        if found := several_fixtures(mark, *where):
            raise UsageError(
                f"{len(found)} fixtures match, but a method of unittest.TestCase can replay only one",
                where=str(path),
                todo="Select one fixture, or write a plain test function",
            )
    return located(path, *where)


@contextlib.contextmanager
def _failing_on_errors() -> Iterator[None]:
    """Fail the test with the message of an agentobs error, without a traceback."""
    from agentobs.errors import AgentobsError

    try:
        yield
    except AgentobsError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture
def replay(request: pytest.FixtureRequest, _replay_place: Path) -> Iterator[Replayer]:
    """Return a replay of the fixture in the test's `replay` marker, open until the test ends.

    When the test ends, a divergence fails it even if the agent swallowed the exception.
    """
    from replay.agent_code.project import project_at

    with _failing_on_errors():
        replayed = _new_replay(request, _replay_place)
    request.node.stash[_REPLAY] = replayed
    with project_at(_project(request.config)):
        replayed.__enter__()
        try:
            yield replayed
        finally:
            replayed.stop()


def _project(config: pytest.Config) -> Path:
    """Return the directory of the agent's files.

    This is pytest's root directory if it has a configuration file, or if pytest was started in it. Otherwise it is the
    current directory, because pytest may have chosen the folder of the test as the root.
    """
    here = Path.cwd()
    is_root = config.inipath is not None or here.is_relative_to(config.rootpath)
    return config.rootpath if is_root else here


def _new_replay(request: pytest.FixtureRequest, place: Path) -> Replayer:
    from replay.fixture.format import load
    from replay.playback.replayer import Replayer
    from replay.pytest_plugin.live_run import LiveRun
    from replay.pytest_plugin.marker import options_of

    options = options_of(_mark(request))
    if request.config.option.replay_update:
        return _recording_run(request, place)
    fixture = load(place)
    replayed = (LiveRun if request.config.option.replay_live else Replayer)(fixture, options)
    replayed.set_test_id(request.node.nodeid)
    return replayed


def _recording_run(request: pytest.FixtureRequest, place: Path) -> Replayer:
    """Return a run that records a test again, or a replay of the pending recording that will be written."""
    from replay.fixture.format import load
    from replay.playback.replayer import Replayer
    from replay.pytest_plugin.live_run import RecordingRun, empty
    from replay.pytest_plugin.marker import file_of, options_of
    from replay.pytest_plugin.renewal import PendingRecording

    temporary, config = request.getfixturevalue("tmp_path_factory"), request.config
    base = temporary.getbasetemp()
    claims = base.parent if hasattr(config, "workerinput") else base
    cache = getattr(config, "cache", None)
    file = file_of(place).resolve()
    pending = PendingRecording(
        fixture=file,
        test=request.node.nodeid,
        folder=cache.mkdir("agentobs-replay") if cache is not None else None,
        claims=claims / "replay-claims",
    )
    existing = pending.existing() if config.option.replay_update == "write" else None
    request.node.stash[_PENDING] = pending, existing
    options = options_of(_mark(request))
    if existing is not None:
        return Replayer(load(existing), options)
    is_new = not file.exists()
    home = temporary.mktemp("replay-home")
    return RecordingRun(empty(file) if is_new else load(file), home, options, is_new=is_new)


def _mark(request: pytest.FixtureRequest) -> Any:
    return request.node.get_closest_marker("replay")


@pytest.fixture
def replay_command(request: pytest.FixtureRequest) -> Callable[..., CommandReplay]:
    """Return a function that runs the command of the fixture in the marker `replay_command`, and checks the run.

    The function takes the options of `replay.run_command`, which override those of the marker, and `allow_drift`, see
    `CommandReplay.check`. With `check=False`, it also returns a run that differs from the recording.
    """
    from replay.pytest_plugin.command_fixtures import command_runner

    mark, options = request.node.get_closest_marker("replay_command"), request.config.option
    with _failing_on_errors():
        return command_runner(
            mark,
            request.path.parent,
            request.config.rootpath,
            may_be_live=options.replay_live,
            is_renewed=bool(options.replay_update),
        )


@pytest.fixture
def replay_client(replay: Replayer) -> Anthropic:
    """Return a client of the SDK that gets its responses from the fixture."""
    from replay.pytest_plugin.client_fixtures import sync_client

    return sync_client(replay)


@pytest.fixture
def replay_async_client(replay: Replayer) -> AsyncAnthropic:
    """Return an async client of the SDK that gets its responses from the fixture."""
    from replay.pytest_plugin.client_fixtures import async_client

    return async_client(replay)


@pytest.fixture
def replay_session(replay: Replayer) -> RecordedSession:
    """Return the facts of the recorded session: its name, entry, arguments and outcome."""
    from replay.pytest_plugin.client_fixtures import session_of

    return session_of(replay.fixture)


@pytest.fixture
def replay_world(replay_async_client: AsyncAnthropic) -> World:
    """Return the world for the agent loop of agentobs, with a client and tools that return recorded results."""
    from replay.pytest_plugin.client_fixtures import world_of

    return world_of(replay_async_client)


@pytest.fixture
def trajectory(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """Return a snapshot to compare a replay with: `assert replay == trajectory`."""
    from replay.pytest_plugin.snapshot import TrajectoryExtension

    return snapshot.use_extension(TrajectoryExtension)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Check the replay when the test has returned, so that the test itself can fail; then write its new recording."""
    replayed = item.stash.get(_REPLAY, None)
    if replayed is None:
        return (yield)
    from replay.divergence.divergence import ReplayEnded

    try:
        try:
            result = yield
        except (Exception, pytest.fail.Exception, pytest.skip.Exception, ReplayEnded) as error:
            replayed.raise_divergence(error)
            raise
        if _has_failed(item):
            replayed.raise_divergence()
        else:
            replayed.check()
            if replayed.workspace.is_complete:
                replayed.stop()
                replayed.workspace.check()
            _write_recording(item, replayed)
            item.user_properties += [(NOTE, note) for note in replayed.notes]
    except Exception as error:
        item.stash[_DIVERGED] = getattr(error, "divergence", None)
        if item.stash[_DIVERGED] is not None:
            _discard_failure(item)
        raise
    return result


def _has_failed(item: Any) -> bool:
    """Return whether a `unittest.TestCase` has failed, which pytest stores in the item instead of raising it."""
    return bool(getattr(item, "_excinfo", None))


def _discard_failure(item: Any) -> None:
    """Discard the failure of a `unittest.TestCase`, which pytest would report instead of the raised exception."""
    if _has_failed(item):
        item._excinfo = None


def _write_recording(item: pytest.Item, replayed: Replayer) -> None:
    """Show or write the new recording of a test that has passed."""
    from replay.pytest_plugin.live_run import RecordingRun

    pending, existing = item.stash.get(_PENDING, (None, None))
    if pending is None:
        return
    changes = None
    if existing is not None:
        changes = pending.write_pending(existing)
    elif isinstance(replayed, RecordingRun) and (recording := replayed.recorded()) is not None:
        writes = item.config.option.replay_update == "write"
        changes = pending.write_recorded(recording) if writes else pending.show(recording)
    if changes is not None:
        where = pending.fixture.parent
        item.user_properties.append((CHANGES, f"{where}: {changes or 'unchanged'}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show the report of a divergence instead of a traceback, and other errors of agentobs in one line."""
    report = yield
    if not (report.failed and call.excinfo):
        return report
    divergence = item.stash.get(_DIVERGED, None) or _divergence(call.excinfo.value)
    if divergence is not None:
        report.longrepr = _as_failure(item, divergence.text())
        for properties in (item.user_properties, report.user_properties):
            properties.append((DIVERGENCE, divergence.json()))
        if item.config.option.verbose > 0:
            report.sections.append(("divergence as JSON", divergence.json()))
    elif item.stash.get(_REPLAY, None) is not None and _is_agentobs_error(call.excinfo.value):
        report.longrepr = _as_failure(item, str(call.excinfo.value))
    return report


def _divergence(error: BaseException | None) -> Any:
    """Return the divergence in an exception or in one of its causes; None if there is none."""
    while error is not None:
        if hasattr(error, "divergence"):
            return error.divergence
        error = error.__cause__ or error.__context__
    return None


def _is_agentobs_error(error: BaseException) -> bool:
    from agentobs.errors import AgentobsError

    return isinstance(error, AgentobsError)


def _as_failure(item: pytest.Item, text: str) -> ExceptionChainRepr:
    """Return the representation of a failed test. The first line of the text is shown in the summary."""
    path, line, _ = item.location
    crash = ReprFileLocation(path, (line or 0) + 1, text.partition("\n")[0])
    trace = ReprTraceback([ReprEntryNative([f"{text}\n"])], None, "native")
    return ExceptionChainRepr([(trace, crash, None)])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the fixtures that the tests of an xdist worker use."""
    for folder, used in getattr(node, "workeroutput", {}).get("replay_used", {}).items():
        node.config.stash[_USED].setdefault(folder, set()).update(used)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if there are fixtures that no test uses."""
    config, used = session.config, session.config.stash[_USED]
    if not used or config.option.replay_unused == "ignore":
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput["replay_used"] = {folder: list(paths) for folder, paths in used.items()}
        return
    from replay.pytest_plugin.unused_fixtures import unused

    config.stash[_UNUSED] = found = unused(config, used)
    if found and config.option.replay_unused == "fail" and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_UNUSED = pytest.StashKey["list[str]"]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report the changes of fixtures, notes, and unused fixtures."""
    for title, kind in (("replay update", CHANGES), ("replay notes", NOTE)):
        texts = [
            text
            for each in terminalreporter.stats.get("passed", ())
            for name, text in each.user_properties
            if name == kind and each.when == "call"
        ]
        if texts:
            terminalreporter.section(title)
            for text in dict.fromkeys(texts):
                terminalreporter.line(text)
    if unused_paths := config.stash.get(_UNUSED, None):
        terminalreporter.section("unused replay fixtures")
        for path in unused_paths:
            terminalreporter.line(
                f"{path}: no collected test uses this fixture. Delete it, or add a test."
            )

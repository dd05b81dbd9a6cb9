"""The pytest plugin: `@pytest.mark.replay(FIXTURE)`, its fixtures and options, and divergences in reports.

It imports only pytest until a test is marked.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
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
    from replay.playback.replayer import Replayer
    from replay.pytest_plugin.client_fixtures import RecordedSession

_REPLAY = pytest.StashKey["Replayer"]()
_PENDING = pytest.StashKey[Any]()
_DIVERGED = pytest.StashKey[Any]()
_NAMED = pytest.StashKey["dict[str, set[str]]"]()
CHANGES = "replay update"
"""The property of a test report that names what changed in its fixture."""
NOTE = "replay note"
"""The property of a test report that holds notes for the reader, even if the test passed."""
DIVERGENCE = "divergence"
"""The property of a test report that contains a divergence as JSON; junit.xml shows it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; a replay needs none of them."""
    group = parser.getgroup("replay", "replay of recorded sessions")
    group.addoption(
        "--replay-update",
        nargs="?",
        const="show",
        type=_update,
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
        help="What to do about fixtures that no test names, if a whole folder of tests was collected.",
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


def _update(value: str) -> str:
    if value not in ("show", "write"):
        raise argparse.ArgumentTypeError(
            f"{value!r}: write --replay-update=write, and paths before it"
        )
    return value


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "replay(*fixtures, **options): answer the agent under test from a recorded session, or from each one of a "
        "folder or pattern; paths are relative to the test's file, else to the root directory; the options are those "
        "of replay.ReplayOptions",
    )
    config.stash[_NAMED] = {}
    if config.option.replay_live and config.option.replay_update:
        raise pytest.UsageError("--replay-live writes nothing: leave it out to use --replay-update")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, obj: object) -> None:
    """Replay a marked test even if it uses none of our fixtures, so that none runs live by mistake."""
    if _is_marked(getattr(collector, "own_markers", ())):
        collector.add_marker(pytest.mark.usefixtures("replay"))
    own = getattr(obj, "__dict__", {}).get("pytestmark", ())
    if isinstance(own, list) and _is_marked(own):
        pytest.mark.usefixtures("replay")(obj)


def _is_marked(marks: Any) -> bool:
    """Return whether markers say that a test is replayed and does not use the fixture yet."""
    names = [(mark.name, mark.args) for mark in marks if isinstance(mark, pytest.Mark)]
    marked = any(name == "replay" for name, _ in names)
    return marked and ("usefixtures", ("replay",)) not in names


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with each fixture if its marker denotes a folder or pattern."""
    mark = metafunc.definition.get_closest_marker("replay")
    if mark is None or "_replay_place" not in metafunc.fixturenames:
        return
    from agentobs.errors import UsageError
    from replay.pytest_plugin.marker import many

    try:
        found = many(mark, metafunc.definition.path.parent, metafunc.config.rootpath)
    except UsageError:
        return  # the fixture says so
    if found is not None:
        metafunc.parametrize("_replay_place", found.values(), ids=list(found), indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note the fixtures that markers name, and their folders, whether or not the test will be deselected."""
    mark = item.get_closest_marker("replay")
    if mark is not None:
        from replay.pytest_plugin.unused_fixtures import note

        note(item.config.stash[_NAMED], mark, item.path.parent, item.config.rootpath)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Run marked tests in their own processes, if there are any and nothing prevents it."""
    config = session.config
    marked = any(item.get_closest_marker("replay") is not None for item in session.items)
    if not marked or config.option.collectonly:
        return
    from replay.isolation.isolation import Isolation, is_switched_off

    if not is_switched_off(config):
        config.pluginmanager.register(Isolation(session), "agentobs-isolation")
        return
    from replay.agent_code import leftover_state

    leftover_state.observe()


@pytest.fixture
def _replay_place(request: pytest.FixtureRequest) -> Path:
    """Return the path of the only fixture of a test."""
    from agentobs.errors import UsageError
    from replay.pytest_plugin.marker import located, many, paths_of

    if hasattr(request, "param"):
        place: Path = request.param
        return place
    mark, where = _mark(request), (request.path.parent, request.config.rootpath)
    with _told():
        [path, *_] = paths_of(mark)
        if found := many(mark, *where):
            raise UsageError(
                f"{len(found)} fixtures, but a method of unittest.TestCase takes one",
                where=str(path),
                todo="Name it, or write a plain test function",
            )
    return located(path, *where)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Fail a test with the message of an agentobs error."""
    from agentobs.errors import AgentobsError

    try:
        yield
    except AgentobsError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture
def replay(request: pytest.FixtureRequest, _replay_place: Path) -> Iterator[Replayer]:
    """Return a replay of the fixture that the test's `replay` marker names, open for the whole test.

    When the test ends, a divergence fails it even if the agent swallowed the exception.
    """
    from replay.agent_code.project import project_at

    with _told():
        replayed = _prepared(request, _replay_place)
    request.node.stash[_REPLAY] = replayed
    with project_at(_project(request.config)):
        replayed.__enter__()
        try:
            yield replayed
        finally:
            replayed.stop()


def _project(config: pytest.Config) -> Path:
    """Return the directory of the agent's files.

    This is pytest's root directory if that has a configuration file, or if pytest was started in it: without one,
    pytest uses the folder of the test as the root.
    """
    here = Path.cwd()
    is_root = config.inipath is not None or here.is_relative_to(config.rootpath)
    return config.rootpath if is_root else here


def _prepared(request: pytest.FixtureRequest, place: Path) -> Replayer:
    from replay.fixture.format import load
    from replay.playback.replayer import Replayer
    from replay.pytest_plugin.live_run import Live
    from replay.pytest_plugin.marker import options_of

    options = options_of(_mark(request))
    if request.config.option.replay_update:
        return _renewed(request, place)
    fixture = load(place)
    replayed = (Live if request.config.option.replay_live else Replayer)(fixture, options)
    replayed.runs_in(request.node.nodeid)
    return replayed


def _renewed(request: pytest.FixtureRequest, place: Path) -> Replayer:
    """Return the object that records a test again, or replays a recording that was shown and will be written."""
    from replay.fixture.format import load
    from replay.playback.replayer import Replayer
    from replay.pytest_plugin.live_run import Renewed, empty
    from replay.pytest_plugin.marker import file_of, options_of
    from replay.pytest_plugin.renewal import Pending

    temporary, config = request.getfixturevalue("tmp_path_factory"), request.config
    base = temporary.getbasetemp()
    claims = base.parent if hasattr(config, "workerinput") else base
    cache = getattr(config, "cache", None)
    file = file_of(place).resolve()
    pending = Pending(
        fixture=file,
        test=request.node.nodeid,
        shelf=cache.mkdir("agentobs-replay") if cache is not None else None,
        claims=claims / "replay-claims",
    )
    waiting = pending.waiting() if config.option.replay_update == "write" else None
    request.node.stash[_PENDING] = pending, waiting
    options = options_of(_mark(request))
    if waiting is not None:
        return Replayer(load(waiting), options)
    is_new = not file.exists()
    home = temporary.mktemp("replay-home")
    return Renewed(empty(file) if is_new else load(file), home, options, is_new=is_new)


def _mark(request: pytest.FixtureRequest) -> Any:
    return request.node.get_closest_marker("replay")


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
    """Return the world in force: for an agent of our loop, with its client, and tools with recorded results."""
    from replay.pytest_plugin.client_fixtures import world_of

    return world_of(replay_async_client)


@pytest.fixture
def trajectory(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """Return a snapshot to compare a replay with: `assert replay == trajectory`."""
    from replay.pytest_plugin.snapshot import TrajectoryExtension

    return snapshot.use_extension(TrajectoryExtension)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Judge the replay when the test has returned, so that the test itself fails, and write what it recorded."""
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
            _write(item, replayed)
            item.user_properties += [(NOTE, note) for note in replayed.notes]
    except Exception as error:
        item.stash[_DIVERGED] = getattr(error, "divergence", None)
        if item.stash[_DIVERGED] is not None:
            _forget(item)
        raise
    return result


def _has_failed(item: Any) -> bool:
    """Return whether a `unittest.TestCase` did not end well: pytest keeps that here, and nothing is raised."""
    return bool(getattr(item, "_excinfo", None))


def _forget(item: Any) -> None:
    """Forget how a `unittest.TestCase` ended, which pytest would report in the place of what is raised."""
    if _has_failed(item):
        item._excinfo = None


def _write(item: pytest.Item, replayed: Replayer) -> None:
    """Show or write what a test that has passed recorded."""
    from replay.pytest_plugin.live_run import Renewed

    pending, waiting = item.stash.get(_PENDING, (None, None))
    if pending is None:
        return
    told = None
    if waiting is not None:
        told = pending.write_waiting(waiting)
    elif isinstance(replayed, Renewed) and (recording := replayed.recorded()) is not None:
        writes = item.config.option.replay_update == "write"
        told = pending.write_recorded(recording) if writes else pending.show(recording)
    if told is not None:
        where = pending.fixture.parent
        item.user_properties.append((CHANGES, f"{where}: {told or 'unchanged'}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show a divergence as its report in place of a traceback, and what else is ours in one line."""
    report = yield
    if not (report.failed and call.excinfo):
        return report
    divergence = item.stash.get(_DIVERGED, None) or _divergence(call.excinfo.value)
    if divergence is not None:
        report.longrepr = _shown(item, divergence.text())
        for properties in (item.user_properties, report.user_properties):
            properties.append((DIVERGENCE, divergence.json()))
        if item.config.option.verbose > 0:
            report.sections.append(("divergence as JSON", divergence.json()))
    elif item.stash.get(_REPLAY, None) is not None and _is_ours(call.excinfo.value):
        report.longrepr = _shown(item, str(call.excinfo.value))
    return report


def _divergence(error: BaseException | None) -> Any:
    """Return the divergence that an exception carries, or one that it was raised from."""
    while error is not None:
        if hasattr(error, "divergence"):
            return error.divergence
        error = error.__cause__ or error.__context__
    return None


def _is_ours(error: BaseException) -> bool:
    from agentobs.errors import AgentobsError

    return isinstance(error, AgentobsError)


def _shown(item: pytest.Item, text: str) -> ExceptionChainRepr:
    """Return a text as what a failed test shows: its first line goes into the summary, all of it into junit.xml."""
    path, line, _ = item.location
    crash = ReprFileLocation(path, (line or 0) + 1, text.partition("\n")[0])
    trace = ReprTraceback([ReprEntryNative([f"{text}\n"])], None, "native")
    return ExceptionChainRepr([(trace, crash, None)])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over which fixtures the tests of a worker of xdist name."""
    for folder, used in getattr(node, "workeroutput", {}).get("replay_named", {}).items():
        node.config.stash[_NAMED].setdefault(folder, set()).update(used)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run where fixtures are left that no test names."""
    config, named = session.config, session.config.stash[_NAMED]
    if not named or config.option.replay_unused == "ignore":
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput["replay_named"] = {folder: list(used) for folder, used in named.items()}
        return
    from replay.pytest_plugin.unused_fixtures import left

    config.stash[_LEFT] = found = left(config, named)
    if found and config.option.replay_unused == "fail" and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_LEFT = pytest.StashKey["list[str]"]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell what fixtures change, and which are unused."""
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
    if left := config.stash.get(_LEFT, None):
        terminalreporter.section("unused replay fixtures")
        for path in left:
            terminalreporter.line(f"{path}: no collected test names it. Delete it, or test it.")

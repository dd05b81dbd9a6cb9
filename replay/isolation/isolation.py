"""Isolation: each replayed test runs in its own process, which no earlier test has changed.

A template process is forked before the first test runs, when all test modules have been imported and the fixtures of
session scope that the first test uses are set up. Each replayed test then runs in a child of the template. State that
other tests leave in this process (a cache, a list of a module, a client) is not in the template, and what the child
leaves ends with it. A test runs in a child of this process instead if a fixture of wider scope has been set up, or
torn down, in the meantime, because it would otherwise exist twice.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.outcomes import OutcomeException
from _pytest.runner import CallInfo
from _pytest.skipping import evaluate_skip_marks

from agentobs import world
from agentobs.errors import UsageError
from replay.isolation.sandbox import flush_terminal, is_per_process, run_test
from replay.isolation.template_process import Death, Scratch, Send, Template, can_fork
from replay.isolation.transfer import take_coverage, take_snapshots, take_warning

UNSHARED_FIXTURES = frozenset(("benchmark", "record_testsuite_property", "record_xml_attribute"))
"""Fixtures that write into objects of this process; a test that uses one of them runs in this process."""
UNSHARED_MARKS = frozenset(("dependency", "incremental"))
"""Marks of plugins that keep results of tests in this process."""
SILENT_SECONDS = 600.0
"""How long a test may send no report. Our choice: the deadlines of a replay and of pytest-timeout are much shorter."""
WARM_UP = "replay.isolation.warmup"
PRELOADED = (
    "agentobs.recording.session",
    "replay.pytest_plugin.client_fixtures",
    "replay.pytest_plugin.live_run",
    "replay.pytest_plugin.marker",
    WARM_UP,
)
"""The modules that the template imports for its children; none of them is the agent's own."""
SESSION = "session"


def is_switched_off(config: pytest.Config) -> bool:
    """Return whether replayed tests run in this process: by option, for a debugger, or because a fork is impossible."""
    option = config.option
    chosen = option.replay_no_fork or not config.getini("replay_fork")
    debugs = option.usepdb or getattr(option, "trace", False) or _is_debugged()
    shows = getattr(option, "setupshow", False) or getattr(option, "setupplan", False)
    return bool(chosen or debugs or shows or not can_fork())


def _is_debugged() -> bool:
    """Return whether a debugger is attached to this process; a coverage tracer does not count."""
    tracer = sys.gettrace()
    of = getattr(tracer, "__module__", None) or type(tracer).__module__
    if tracer is not None and str(of).partition(".")[0] != "coverage":
        return True
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None and debugpy.is_client_connected():
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


class Isolation:
    """Runs the replayed tests of a session in processes of their own."""

    def __init__(self, session: pytest.Session) -> None:
        """Note the tests of a session once they are collected."""
        self._session, self._items = session, list(session.items)
        self._numbers = {id(item): number for number, item in enumerate(self._items)}
        self._left = {id(item) for item in self._items if _is_replayed(item)}
        self._filters: list[Any] = list(warnings.filters)
        self._template: Template | None = None
        self._fixtures: dict[Any, Any] = {}
        self._scratch: Scratch | None = None
        self._is_child = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Any:
        """Note the warning filters that are in force outside of tests, and end all child processes."""
        self._filters = list(warnings.filters)
        try:
            return (yield)
        finally:
            if not self._is_child:
                self._close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run a replayed test in a child; leave any other one to pytest."""
        if self._is_child:
            return None
        forks = self._forks(item)
        self._left.discard(id(item))
        if self._template is None and (forks or self._left):
            try:
                self._open(item, forks)
            except OSError as error:
                forks = False
                warnings.warn(f"replayed tests run in this process: {error}", stacklevel=1)
        if not forks:
            if nextitem is None or not self._left:
                self._close()
            return None
        if item.config.pluginmanager.hasplugin("timeout"):
            item.config.hook.pytest_timeout_cancel_timer(item=item)
        location = {"nodeid": item.nodeid, "location": item.location}
        item.ihook.pytest_runtest_logstart(**location)
        self._run(item)
        if nextitem is None:
            self._close()
        self._tear_down(item, nextitem)
        item.ihook.pytest_runtest_logfinish(**location)
        return True

    def _forks(self, item: pytest.Item) -> bool:
        """Return whether a test runs in a process of its own."""
        if not _is_replayed(item) or is_switched_off(item.config):
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        used = set(getattr(item, "fixturenames", ()))
        if used & UNSHARED_FIXTURES or any(
            item.get_closest_marker(mark) for mark in UNSHARED_MARKS
        ):
            return False
        if "snapshot" in used and not _can_hand_over_snapshots(item.config):
            return False
        return not any(_is_async(each) for each in _wider(item) if each.cached_result is not None)

    def _open(self, item: pytest.Item, forks: bool) -> None:
        """Fork the template, unless the next test is skipped and therefore changes nothing."""
        if not forks:
            try:
                if evaluate_skip_marks(item) is not None:
                    return
            except (Exception, OutcomeException):
                return  # the mark is wrong; pytest reports it, and no test runs
        _set_up_session(item)
        # Evaluated once for all processes, so that each of them adds to the same directory.
        if (factory := getattr(item.config, "_tmp_path_factory", None)) is not None:
            factory.getbasetemp()
        self._fixtures = {
            each: each.cached_result for item in self._items for each in _outliving(item)
        }
        self._scratch = self._scratch or Scratch()
        self._template = Template(self._work, _prepare)

    def _work(self, number: int, send: Send) -> None:
        """Run a test, in the child."""
        self._is_child = True
        assert self._scratch is not None
        run_test(self._items[number], send, self._scratch, self._filters, self._fixtures)

    def _run(self, item: pytest.Item) -> None:
        """Run a test in a child and report its results."""
        assert self._template is not None
        flush_terminal(item.config)
        number = self._numbers.get(id(item))
        has_changed = any(
            self._fixtures.get(each) is not each.cached_result for each in _wider(item)
        )
        if number is not None and not has_changed:
            self._follow(item, self._template, number)
            return
        if number is None:
            self._items.append(item)
            number = len(self._items) - 1
        template = Template(self._work)
        try:
            self._follow(item, template, number)
        finally:
            template.close()

    def _follow(self, item: pytest.Item, template: Template, number: int) -> None:
        """Handle the messages of a child; report a test whose process ends early."""
        seen = _Seen(item, world.now())
        sent = template.run(number, _seconds(item.config))
        try:
            with contextlib.closing(sent):
                for kind, value in sent:
                    self._receive(seen, kind, value)
        except UsageError as error:
            # The next test has another template.
            template.close()
            self._template = None if template is self._template else self._template
            self._fail(seen, str(error))

    def _receive(self, seen: _Seen, kind: str, value: Any) -> None:
        if kind == "report":
            seen.take(value)
        elif kind == "broken":
            self._fail(seen, value)
        elif kind == "ended" and not seen.is_done:
            self._fail(seen, _died(seen, value))
        seen.is_done = seen.is_done or kind in ("done", "broken")
        _take(seen.item, kind, value)

    def _fail(self, seen: _Seen, text: str) -> None:
        """Report that the process of a test has failed, with its last output."""
        names = {
            "Captured stdout": "out",
            "Captured stderr": "err",
            "Stack of the process": "trace",
        }
        scratch = self._scratch
        held = {title: scratch.text(name) for title, name in names.items()} if scratch else {}
        sections = [(title, _without_frames(text)) for title, text in held.items() if text]
        seen.fail(text, sections)

    def _tear_down(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear down fixtures that earlier tests have set up in this process and the next one does not use."""
        state = self._session._setupstate
        needed = nextitem.listchain() if nextitem is not None else []
        if list(state.stack) == needed[: len(state.stack)]:
            return
        call = CallInfo.from_call(
            lambda: state.teardown_exact(nextitem),
            when="teardown",
            reraise=(pytest.exit.Exception, KeyboardInterrupt),
        )
        if call.excinfo is not None:
            _log(item, item.ihook.pytest_runtest_makereport(item=item, call=call))

    def _close(self) -> None:
        template, self._template = self._template, None
        if template is not None:
            template.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.close()


class _Seen:
    """The results that a test in a child process has sent so far."""

    def __init__(self, item: pytest.Item, start_ns: int) -> None:
        self.item, self._start_ns = item, start_ns
        self.phases: list[str] = []
        self.is_done = False

    def take(self, data: dict[str, Any]) -> None:
        """Report the results that the test sent."""
        self.phases.append(data["when"])
        config = self.item.config
        _log(self.item, config.hook.pytest_report_from_serializable(config=config, data=data))

    def fail(self, text: str, sections: list[tuple[str, str]]) -> None:
        """Report a failure on behalf of a test whose process has ended."""
        stop_ns = world.now()
        common: dict[str, Any] = {
            "nodeid": self.item.nodeid,
            "location": self.item.location,
            "keywords": dict.fromkeys(self.item.keywords, 1),
        }
        failed = pytest.TestReport(
            **common,
            outcome="failed",
            longrepr=text,
            when="teardown" if "call" in self.phases else "call",
            sections=sections,
            duration=(stop_ns - self._start_ns) / 1e9,
            start=self._start_ns / 1e9,
            stop=stop_ns / 1e9,
            user_properties=list(self.item.user_properties),
        )
        _log(self.item, failed)
        if "call" not in self.phases:
            # Some reporters close a test at its teardown.
            ended = pytest.TestReport(**common, outcome="passed", longrepr=None, when="teardown")
            _log(self.item, ended)


def _died(seen: _Seen, death: Death) -> str:
    """Describe a process that ended before its test did."""
    phases = seen.phases
    place = "its teardown" if "call" in phases else "the test" if "setup" in phases else "its setup"
    todo = "Use --replay-no-fork to run it in the pytest process."
    if death.is_late:
        return f"the process of this test sent nothing for too long during {place} and was killed. {todo}"
    return f"the process of this test {death.text()} in {place}. {todo}"


def _prepare() -> None:
    """Do work in the template that every child would otherwise repeat."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules[WARM_UP].warm_up()


def _without_frames(text: str) -> str:
    """Return the last output of a process, without the frames of pytest and of this package."""
    lines = text.splitlines(keepends=True)
    return "".join(each for each in lines if not _FRAME_OF_PYTEST.match(each))


_FRAME_OF_PYTEST = re.compile(
    r'  File "(?:.*[/\\](?:_pytest|pluggy|pytest)[/\\].*|.*[/\\]replay[/\\](?:sandbox|processes|isolation)\.py'
    r'|<frozen runpy>)", line |Extension modules: '
)


def _is_replayed(item: pytest.Item) -> bool:
    return item.get_closest_marker("replay") is not None


def _log(item: pytest.Item, report: pytest.TestReport) -> None:
    item.ihook.pytest_runtest_logreport(report=report)


def _take(item: pytest.Item, kind: str, value: Any) -> None:
    """Handle a message as if the test had run in this process."""
    match kind:
        case "warning":
            take_warning(item, value)
        case "snapshots":
            take_snapshots(item, value)
        case "coverage":
            take_coverage(value)
        case "interrupted":
            raise KeyboardInterrupt
        case "exit":
            pytest.exit(*value)


def _seconds(config: pytest.Config) -> float | None:
    """Return how long a child may be silent; a live test takes as long as the provider does."""
    if config.option.replay_live or config.option.replay_update:
        return None
    return SILENT_SECONDS


def _outliving(item: pytest.Item) -> Iterator[Any]:
    """Yield the fixtures of a test that may outlive it."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return (each for defs in known.values() for each in defs if each.scope != "function")


def _wider(item: pytest.Item) -> Iterator[Any]:
    """Yield the fixtures of a test that may outlive it, except pytest's own and per-process fixtures."""
    for each in _outliving(item):
        module = str(getattr(each.func, "__module__", ""))
        if not module.startswith("_pytest.") and not is_per_process(each.func):
            yield each


def _is_async(fixture: Any) -> bool:
    return inspect.iscoroutinefunction(fixture.func) or inspect.isasyncgenfunction(fixture.func)


def _set_up_session(item: pytest.Item) -> None:
    """Set up the fixtures of session scope that a test uses, as pytest does just after.

    If a fixture raises, pytest keeps the exception and raises it again in the setup of the test.
    """
    names = {each.argname for each in _wider(item) if each.scope == SESSION and not _is_async(each)}
    request = getattr(item, "_request", None)
    if not names or request is None:
        return
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    state: Any = item.session._setupstate
    state.setup(item.session)
    # A fixture may only be requested for a test that is being set up.
    state.stack[item] = ([], None)
    with capture.item_capture("setup", item) if capture else contextlib.nullcontext():
        try:
            for name in (each for each in item.fixturenames if each in names):  # type: ignore[attr-defined]
                request.getfixturevalue(name)
        except pytest.exit.Exception:
            raise
        except (Exception, OutcomeException):
            pass
        finally:
            del state.stack[item]
    item._initrequest()  # type: ignore[attr-defined]


def _can_hand_over_snapshots(config: pytest.Config) -> bool:
    """Return whether the installed syrupy stores its results as the versions that we support do."""
    session = getattr(config, "_syrupy", None)
    return session is None or all(
        hasattr(session, name) for name in ("_assertions", "_queued_snapshot_writes")
    )

"""Isolation: each replayed test runs in its own process, which no earlier test has changed.

A template process is forked before the first test runs. At this point, all test modules have been imported, and the
session-scoped fixtures of the first test have been set up. Each replayed test then runs in a child of the template. The
template does not contain the state that other tests leave in this process (a cache, a list in a module, a client), and
the state that a child leaves disappears with it. If a fixture of wider scope has been set up or torn down in the
meantime, a test runs in a child of this process instead, because the fixture would otherwise be set up twice.
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
from replay.isolation.template_process import Death, OutputFiles, Send, Template, can_fork
from replay.isolation.transfer import merge_coverage, merge_snapshots, record_warning

UNSHARED_FIXTURES = frozenset(("benchmark", "record_testsuite_property", "record_xml_attribute"))
"""Fixtures that write into objects of this process; a test that uses one of them runs in this process."""
UNSHARED_MARKS = frozenset(("dependency", "incremental"))
"""Marks of plugins that store test results in this process; a test with one of these marks runs in this process."""
SILENT_SECONDS = 600.0
"""How long a test process may send nothing before it is killed. Our choice: the deadlines of a replay and of
pytest-timeout are much shorter.
"""
WARM_UP = "replay.playback.warmup"
PRELOADED = (
    "agentobs.recording.session",
    "replay.pytest_plugin.client_fixtures",
    "replay.pytest_plugin.live_run",
    "replay.pytest_plugin.marker",
    WARM_UP,
)
"""The modules that the template imports for its children; none of them belongs to the agent."""
SESSION = "session"


def is_switched_off(config: pytest.Config) -> bool:
    """Return whether replayed tests run in this process, because of an option, a debugger, or a missing `fork`."""
    option = config.option
    chosen = option.replay_no_fork or not config.getini("replay_fork")
    debugs = option.usepdb or getattr(option, "trace", False) or _is_debugged()
    shows = getattr(option, "setupshow", False) or getattr(option, "setupplan", False)
    return bool(chosen or debugs or shows or not can_fork())


def _is_debugged() -> bool:
    """Return whether a debugger is attached to this process; a coverage tracer does not count."""
    tracer = sys.gettrace()
    module = getattr(tracer, "__module__", None) or type(tracer).__module__
    if tracer is not None and str(module).partition(".")[0] != "coverage":
        return True
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None and debugpy.is_client_connected():
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


class Isolation:
    """Runs each replayed test of a session in its own process."""

    def __init__(self, session: pytest.Session) -> None:
        """Prepare to run the collected tests of a session."""
        self._session, self._items = session, list(session.items)
        self._numbers = {id(item): number for number, item in enumerate(self._items)}
        self._remaining = {id(item) for item in self._items if _is_replayed(item)}
        self._filters: list[Any] = list(warnings.filters)
        self._template: Template | None = None
        self._fixtures: dict[Any, Any] = {}
        self._files: OutputFiles | None = None
        self._is_child = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Any:
        """Keep the warning filters that apply outside of tests; at the end, end all child processes."""
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
        """Run a replayed test in a child process; leave all other tests to pytest."""
        if self._is_child:
            return None
        in_child = self._runs_in_child(item)
        self._remaining.discard(id(item))
        if self._template is None and (in_child or self._remaining):
            try:
                self._open(item, in_child)
            except OSError as error:
                in_child = False
                warnings.warn(f"replayed tests run in this process: {error}", stacklevel=1)
        if not in_child:
            if nextitem is None or not self._remaining:
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

    def _runs_in_child(self, item: pytest.Item) -> bool:
        """Return whether a test runs in its own process."""
        if not _is_replayed(item) or is_switched_off(item.config):
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        used = set(getattr(item, "fixturenames", ()))
        if used & UNSHARED_FIXTURES or any(
            item.get_closest_marker(mark) for mark in UNSHARED_MARKS
        ):
            return False
        if "snapshot" in used and not _can_transfer_snapshots(item.config):
            return False
        return not any(
            _is_async(each) for each in _shared_fixtures(item) if each.cached_result is not None
        )

    def _open(self, item: pytest.Item, in_child: bool) -> None:
        """Fork the template, unless the next test is skipped and therefore changes nothing."""
        if not in_child:
            try:
                if evaluate_skip_marks(item) is not None:
                    return
            except (Exception, OutcomeException):
                return  # the mark is invalid: pytest reports the error instead of running the test
        _set_up_session(item)
        # The base directory is determined here once, so that all processes use the same one.
        if (factory := getattr(item.config, "_tmp_path_factory", None)) is not None:
            factory.getbasetemp()
        self._fixtures = {
            each: each.cached_result for item in self._items for each in _outliving_fixtures(item)
        }
        self._files = self._files or OutputFiles()
        self._template = Template(self._work, _prepare)

    def _work(self, number: int, send: Send) -> None:
        """Run a test, in the child."""
        self._is_child = True
        assert self._files is not None
        run_test(self._items[number], send, self._files, self._filters, self._fixtures)

    def _run(self, item: pytest.Item) -> None:
        """Run a test in a child and report its results."""
        assert self._template is not None
        flush_terminal(item.config)
        number = self._numbers.get(id(item))
        has_changed = any(
            self._fixtures.get(each) is not each.cached_result for each in _shared_fixtures(item)
        )
        if number is not None and not has_changed:
            self._handle_messages(item, self._template, number)
            return
        if number is None:
            self._items.append(item)
            number = len(self._items) - 1
        template = Template(self._work)
        try:
            self._handle_messages(item, template, number)
        finally:
            template.close()

    def _handle_messages(self, item: pytest.Item, template: Template, number: int) -> None:
        """Handle the messages of a child; report a test whose process ends early."""
        results = _ReceivedResults(item, world.now())
        sent = template.run(number, _seconds(item.config))
        try:
            with contextlib.closing(sent):
                for kind, value in sent:
                    self._receive(results, kind, value)
        except UsageError as error:
            # The next test gets a new template.
            template.close()
            self._template = None if template is self._template else self._template
            self._fail(results, str(error))

    def _receive(self, results: _ReceivedResults, kind: str, value: Any) -> None:
        if kind == "report":
            results.report(value)
        elif kind == "broken":
            self._fail(results, value)
        elif kind == "ended" and not results.is_done:
            self._fail(results, _early_end(results, value))
        results.is_done = results.is_done or kind in ("done", "broken")
        _handle(results.item, kind, value)

    def _fail(self, results: _ReceivedResults, text: str) -> None:
        """Report that the process of a test has failed, with its last output."""
        names = {
            "Captured stdout": "out",
            "Captured stderr": "err",
            "Stack of the process": "trace",
        }
        files = self._files
        outputs = {title: files.text(name) for title, name in names.items()} if files else {}
        sections = [(title, _without_frames(text)) for title, text in outputs.items() if text]
        results.fail(text, sections)

    def _tear_down(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear down the fixtures that earlier tests have set up in this process, except fixtures of the next test."""
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
            _log_report(item, item.ihook.pytest_runtest_makereport(item=item, call=call))

    def _close(self) -> None:
        template, self._template = self._template, None
        if template is not None:
            template.close()
        files, self._files = self._files, None
        if files is not None:
            files.close()


class _ReceivedResults:
    """The results that a test in a child process has sent so far."""

    def __init__(self, item: pytest.Item, start_ns: int) -> None:
        self.item, self._start_ns = item, start_ns
        self.phases: list[str] = []
        self.is_done = False

    def report(self, data: dict[str, Any]) -> None:
        """Report a result that the test sent."""
        self.phases.append(data["when"])
        config = self.item.config
        _log_report(
            self.item, config.hook.pytest_report_from_serializable(config=config, data=data)
        )

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
        _log_report(self.item, failed)
        if "call" not in self.phases:
            # Some reporters count a test as complete only after its teardown.
            ended = pytest.TestReport(**common, outcome="passed", longrepr=None, when="teardown")
            _log_report(self.item, ended)


def _early_end(results: _ReceivedResults, death: Death) -> str:
    """Describe a process that ended before its test did."""
    phases = results.phases
    place = "its teardown" if "call" in phases else "the test" if "setup" in phases else "its setup"
    todo = "Use --replay-no-fork to run it in the pytest process."
    if death.is_late:
        return f"the process of this test did not respond during {place} and was killed. {todo}"
    return f"the process of this test {death.text()} during {place}. {todo}"


def _prepare() -> None:
    """Do work in the template that every child would otherwise repeat."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules[WARM_UP].warm_up()


def _without_frames(text: str) -> str:
    """Return the last output of a process without stack frames of pytest and agentobs."""
    lines = text.splitlines(keepends=True)
    return "".join(each for each in lines if not _FRAME_OF_PYTEST.match(each))


_FRAME_OF_PYTEST = re.compile(
    r'  File "(?:.*[/\\](?:_pytest|pluggy|pytest)[/\\].*|.*[/\\]replay[/\\]isolation[/\\].*'
    r'|<frozen runpy>)", line |Extension modules: '
)


def _is_replayed(item: pytest.Item) -> bool:
    return item.get_closest_marker("replay") is not None


def _log_report(item: pytest.Item, report: pytest.TestReport) -> None:
    item.ihook.pytest_runtest_logreport(report=report)


def _handle(item: pytest.Item, kind: str, value: Any) -> None:
    """Handle a message as if the test had run in this process."""
    match kind:
        case "warning":
            record_warning(item, value)
        case "snapshots":
            merge_snapshots(item, value)
        case "coverage":
            merge_coverage(value)
        case "interrupted":
            raise KeyboardInterrupt
        case "exit":
            pytest.exit(*value)


def _seconds(config: pytest.Config) -> float | None:
    """Return how long a child may send nothing; None for live tests, because their duration depends on the provider."""
    if config.option.replay_live or config.option.replay_update:
        return None
    return SILENT_SECONDS


def _outliving_fixtures(item: pytest.Item) -> Iterator[Any]:
    """Yield the fixtures of a test that may outlive the test."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return (each for defs in known.values() for each in defs if each.scope != "function")


def _shared_fixtures(item: pytest.Item) -> Iterator[Any]:
    """Yield the fixtures of a test that may outlive the test, except pytest's own and per-process fixtures."""
    for each in _outliving_fixtures(item):
        module = str(getattr(each.func, "__module__", ""))
        if not module.startswith("_pytest.") and not is_per_process(each.func):
            yield each


def _is_async(fixture: Any) -> bool:
    return inspect.iscoroutinefunction(fixture.func) or inspect.isasyncgenfunction(fixture.func)


def _set_up_session(item: pytest.Item) -> None:
    """Set up the session-scoped fixtures of a test, as pytest would.

    If a fixture raises, pytest keeps the exception and raises it again in the setup of the test.
    """
    names = {
        each.argname
        for each in _shared_fixtures(item)
        if each.scope == SESSION and not _is_async(each)
    }
    request = getattr(item, "_request", None)
    if not names or request is None:
        return
    capture: Any = item.config.pluginmanager.get_plugin("capturemanager")
    state: Any = item.session._setupstate
    state.setup(item.session)
    # Fixtures can only be requested for a test that is being set up.
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


def _can_transfer_snapshots(config: pytest.Config) -> bool:
    """Return whether the installed syrupy stores its results like the supported versions."""
    session = getattr(config, "_syrupy", None)
    return session is None or all(
        hasattr(session, name) for name in ("_assertions", "_queued_snapshot_writes")
    )

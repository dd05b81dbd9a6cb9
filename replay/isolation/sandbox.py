"""The sandbox: one test in a forked process, from its setup to its teardown.

The child runs pytest's own protocol with all plugins. Everything that pytest would show or count (reports, warnings,
snapshots, coverage) is sent to the pytest process, which waits for the test. Fixtures that were set up before the fork
are used as they are, and are torn down by the process that set them up.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agentobs.errors import AgentobsError
from replay.isolation.template_process import OutputFiles, Send
from replay.isolation.transfer import Coverage, Snapshots, picklable, picklable_warning

SILENCED = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
)
"""Hooks that display or count results; they are called in the waiting process."""
PER_PROCESS = ("anyio", "pytest_asyncio", "pytest_trio")
"""Plugins whose fixtures of wider scope hold an event loop, which a child cannot share."""


def run_test(
    item: pytest.Item,
    send: Send,
    files: OutputFiles,
    filters: Sequence[Any],
    fixtures: Iterable[Any],
) -> None:
    """Run a test and send its results. If the test runs to its end, the last message is `done`.

    Args:
        item: the test.
        send: sends a message to the waiting process.
        files: the files for captured output and for the traceback of a crash.
        filters: the warning filters that apply outside of tests.
        fixtures: the definitions of fixtures that may have been set up before the fork.
    """
    files.clear()
    faulthandler.enable(file=files.descriptor("trace"))
    _capture_into(item.config, files)
    _drop_inherited(item, fixtures)
    _forget_children()
    _forward(item.config, send)
    warnings.filters[:] = filters  # type: ignore[index]  # a list, at run time
    # This module is not imported at the top, because it needs the recorder, which the pytest process need not import.
    importlib.import_module("replay.agent_code.leftover_state").rely_on_isolation()
    snapshots, coverage = Snapshots(item), Coverage()
    send("begun", None)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    except KeyboardInterrupt:
        _tear_down(item)
        send("interrupted", None)
    except pytest.exit.Exception as error:
        _tear_down(item)
        send("exit", (str(error.msg), error.returncode))
    try:
        for kind, value in (("snapshots", snapshots.data()), ("coverage", coverage.data())):
            if value is not None:
                send(kind, value)
        _clean_up(item.config)
    except (
        Exception
    ) as error:  # an error of a plugin or the agent fails this test, not the complete run
        is_known = isinstance(error, AgentobsError)
        send("broken", str(error) if is_known else traceback.format_exc())
    send("done", None)


def is_per_process(function: Any) -> bool:
    """Return whether a fixture is set up separately in each process."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in PER_PROCESS


def flush_terminal(config: pytest.Config) -> None:
    """Flush the buffer of the terminal, which does not exist in a worker of xdist."""
    if config.pluginmanager.hasplugin("terminalreporter"):
        config.get_terminal_writer().flush()


class _Forwarder:
    """Sends everything that pytest would display or count."""

    def __init__(self, config: pytest.Config, send: Send) -> None:
        self._config, self._send = config, send
        self.is_on = False
        """Whether warnings are sent. False at first, because pytest repeats past warnings when a plugin is registered.
        """

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("report", picklable(data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if self.is_on:
            self._send("warning", (picklable_warning(warning_message), when, nodeid, location))

    def pytest_enter_pdb(self) -> None:
        """Lift the time limit while a person debugs."""
        self._send("unlimited", None)


def _forward(config: pytest.Config, send: Send) -> None:
    """Replace the hooks that display or count results by a plugin that sends them."""
    for name in SILENCED:
        caller = getattr(config.hook, name)
        for implementation in caller.get_hookimpls():
            caller._remove_plugin(implementation.plugin)
    forwarder = _Forwarder(config, send)
    config.pluginmanager.register(forwarder, "agentobs-forwarder")
    forwarder.is_on = True


def _capture_into(config: pytest.Config, files: OutputFiles) -> None:
    """Capture output into files that can still be read after this child has crashed."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    captured: Any = getattr(manager, "_global_capturing", None)
    if manager is None or captured is None:
        return
    for name in ("out", "err"):
        capture: Any = getattr(captured, name, None)
        if not hasattr(capture, "targetfd"):
            continue
        os.dup2(files.descriptor(name), capture.tmpfile.fileno())
        if capture._state == "started":
            os.dup2(files.descriptor(name), capture.targetfd)
    manager.read_global_capture()


def _drop_inherited(item: pytest.Item, fixtures: Iterable[Any]) -> None:
    """Leave finalizers of fixtures that were set up before the fork to the process that set them up."""
    chain = item.listchain()
    stack = item.session._setupstate.stack
    for node in list(stack):
        stack[node][0].clear()
        if node not in chain:
            del stack[node]
    for each in fixtures:
        if each.cached_result is not None:
            each._finalizers.clear()
            if is_per_process(each.func):
                each.cached_result = None


def _tear_down(item: pytest.Item) -> None:
    """Run the finalizers of a test that was interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        item.session._setupstate.teardown_exact(None)


def _forget_children() -> None:
    """Forget the `multiprocessing` children of the parent process, so that this process does not end them."""
    if (module := sys.modules.get("multiprocessing.process")) is not None:
        module._children = set()  # type: ignore[attr-defined]


def _clean_up(config: pytest.Config) -> None:
    """Clean up, because this process exits without running `atexit` handlers."""
    if (sessions := sys.modules.get("agentobs.recording.session")) is not None:
        sessions.stop_recorder()
    if (module := sys.modules.get("multiprocessing.util")) is not None:
        module._exit_function()
    flush_terminal(config)

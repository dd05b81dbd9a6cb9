"""The sandbox: one test in a forked process, from its setup to its teardown.

The child runs pytest's own protocol, with every plugin that takes part in it. What pytest would show or count (reports,
warnings, snapshots, coverage) is sent to the process that waits. Fixtures that were set up before the fork are
used as they are, and are torn down by the process that set them up.
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
from replay.isolation.template_process import Scratch, Send
from replay.isolation.transfer import Coverage, Snapshots, packed_warning, plain

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
    scratch: Scratch,
    filters: Sequence[Any],
    fixtures: Iterable[Any],
) -> None:
    """Run a test and send its results; the last message of a test that ran to its end is `done`.

    Args:
        item: the test.
        send: sends a message to the process that waits.
        scratch: where captured output and the traceback of a crash go.
        filters: the warning filters that were in force outside of any test.
        fixtures: the definitions of fixtures that may have been set up before the fork.
    """
    scratch.clear()
    faulthandler.enable(file=scratch.descriptor("trace"))
    _capture_into(item.config, scratch)
    _drop_inherited(item, fixtures)
    _forget_children()
    _forward(item.config, send)
    warnings.filters[:] = filters  # type: ignore[index]  # a list, at run time
    # Imported in the template: it needs the recorder, which the process of pytest may do without.
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
        for kind, value in (("snapshots", snapshots.taken()), ("coverage", coverage.taken())):
            if value is not None:
                send(kind, value)
        _end(item.config)
    except Exception as error:  # of a plugin or of the agent; it is the test's, not the run's
        is_ours = isinstance(error, AgentobsError)
        send("broken", str(error) if is_ours else traceback.format_exc())
    send("done", None)


def is_per_process(function: Any) -> bool:
    """Return whether a fixture is set up separately in each process."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in PER_PROCESS


def flush_terminal(config: pytest.Config) -> None:
    """Empty the buffer of the terminal; a worker of xdist has none."""
    if config.pluginmanager.hasplugin("terminalreporter"):
        config.get_terminal_writer().flush()


class _Forwarder:
    """Sends what pytest would display or count."""

    def __init__(self, config: pytest.Config, send: Send) -> None:
        self._config, self._send = config, send
        self.is_on = False
        """Ignore past warnings, which pytest repeats when a plugin is registered."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("report", plain(data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if self.is_on:
            told = packed_warning(warning_message), when, nodeid, location
            self._send("warning", told)

    def pytest_enter_pdb(self) -> None:
        """Lift the time limit while a person debugs."""
        self._send("unlimited", None)


def _forward(config: pytest.Config, send: Send) -> None:
    """Make hooks that display or count results only send them."""
    for name in SILENCED:
        caller = getattr(config.hook, name)
        for implementation in caller.get_hookimpls():
            caller._remove_plugin(implementation.plugin)
    forwarder = _Forwarder(config, send)
    config.pluginmanager.register(forwarder, "agentobs-forwarder")
    forwarder.is_on = True


def _capture_into(config: pytest.Config, scratch: Scratch) -> None:
    """Capture output into files of this child, which can be read when it has crashed."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    captured: Any = getattr(manager, "_global_capturing", None)
    if manager is None or captured is None:
        return
    for name in ("out", "err"):
        capture: Any = getattr(captured, name, None)
        if not hasattr(capture, "targetfd"):
            continue
        os.dup2(scratch.descriptor(name), capture.tmpfile.fileno())
        if capture._state == "started":
            os.dup2(scratch.descriptor(name), capture.targetfd)
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
    """Forget child processes of `multiprocessing` that another process started, so that this one does not end them."""
    if (module := sys.modules.get("multiprocessing.process")) is not None:
        module._children = set()  # type: ignore[attr-defined]


def _end(config: pytest.Config) -> None:
    """Do the cleanup of a process that exits without running `atexit` handlers."""
    if (sessions := sys.modules.get("agentobs.recording.session")) is not None:
        sessions.stop_recorder()
    if (module := sys.modules.get("multiprocessing.util")) is not None:
        module._exit_function()
    flush_terminal(config)

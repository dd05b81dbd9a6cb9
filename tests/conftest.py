"""Settings for all tests: interruption, certificates, disk syncs, garbage collection, cleanup after each test, and
groups of tests for one process.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import settings

from tests.failure_lines import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]

# Deadlines are off, because a busy machine must not fail a test. Tests may set their own number of examples.
settings.register_profile("quick", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=2000)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Enable interrupts in this process, and reduce the number of certificates that clients load."""
    _enable_interrupts()
    # The records of a session do not depend on the repository of the tests; tests/recording/test_git.py enables this.
    os.environ.setdefault("AGENTOBS_GIT", "off")
    # Tests compare output with local times.
    os.environ["TZ"] = "UTC"
    time.tzset()
    _load_one_certificate(config)
    _skip_disk_syncs()


def _enable_interrupts() -> None:
    """Enable Ctrl-C, which a shell disables for background processes; processes that tests start inherit this."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _load_one_certificate(config: pytest.Config) -> None:
    """Make clients load one trusted certificate, because loading all of them takes 20 ms per client.

    It also replaces the certificates that the environment names, because tests never connect to other machines.
    Programs that tests start inherit the setting.
    """
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().openssl_cafile
    trusted = Path(named) if Path(named).is_file() else Path(certifi.where())
    first, end, others = trusted.read_text("utf-8").partition("-----END CERTIFICATE-----\n")
    if "BEGIN CERTIFICATE" not in others and "SSL_CERT_FILE" in os.environ:
        return  # set by the process that started this worker
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(first + end)
    config.add_cleanup(functools.partial(os.unlink, file.name))
    os.environ["SSL_CERT_FILE"] = file.name


def _skip_disk_syncs() -> None:
    """Do not wait until files are on the disk, because no test cuts the power.

    tests/recording/test_durability.py also replaces these functions, to check that files are synced in the right order.
    """
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            setattr(os, name, _check_descriptor)


def _check_descriptor(descriptor: int) -> None:
    """Raise the same error as a sync if the descriptor is not open."""
    os.fstat(descriptor)


def pytest_collection_finish() -> None:
    """Exclude the modules and the list of tests from garbage collection, because they make it take 0.25 s each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let Python delete all objects at its end; some libraries report objects that remain."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stop a recorder that a test leaves running, because the next test in this process would use it.

    Also forget the agents of a test, so that a divergence report of a later test does not mention them, and its
    one-time warnings, because another test may expect the same warning.
    """
    yield
    if (errors := sys.modules.get("agentobs.errors")) is not None:
        errors._reported.clear()
    if (sessions := sys.modules.get("agentobs.recording.session")) is not None:
        sessions.stop_recorder()
    if (leftovers := sys.modules.get("replay.agent_code.leftover_state")) is not None:
        leftovers.forget()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the name of its group to the ID of each test, because `--dist loadgroup` expects it there.

    Tests that share a module-scoped fixture are a group as well, so that the fixture is created in only one process.
    xdist 3.8 stores the name of a group in an attribute that pytest 9.2 no longer reads.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        group = marker.args[0] if marker else item.path.stem if _uses_module_fixture(item) else None
        if group and "@" not in item.nodeid:
            item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def _uses_module_fixture(item: pytest.Item) -> bool:
    """Return whether a test uses a module-scoped fixture."""
    used = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - it is private
    return any(each[-1].scope == "module" for each in used)

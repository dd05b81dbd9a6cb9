"""What holds for all tests: which run in one process, what they leave, and how what they start is interrupted."""

from __future__ import annotations

import functools
import os
import signal
import ssl
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No property is decided by how busy the machine is. Counts that a test states itself stay as they are.
settings.register_profile("quick", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=2000)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process: how it is interrupted, and which certificates clients load."""
    _interruptible()
    _few_certificates(config)


def _interruptible() -> None:
    """Hear Ctrl-C, which a shell has what it starts in the background ignore; processes that tests start inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _few_certificates(config: pytest.Config) -> None:
    """Make clients load one trusted certificate instead of all, which costs 20 ms for each client.

    Tests never leave the machine. Programs that tests start inherit the setting.
    """
    trusted = Path(ssl.get_default_verify_paths().openssl_cafile)
    if "SSL_CERT_FILE" in os.environ or not trusted.is_file():
        return
    first, end, _ = trusted.read_text("utf-8").partition("-----END CERTIFICATE-----\n")
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(first + end)
    config.add_cleanup(functools.partial(os.unlink, file.name))
    os.environ["SSL_CERT_FILE"] = file.name


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stop the recorder that a test leaves: whichever runs next in its process would record there.

    A divergence of the next test does not mention the agents of this one either.
    """
    yield
    if (sessions := sys.modules.get("agentobs.recording.session")) is not None:
        sessions.stop_recorder()
    if (leftovers := sys.modules.get("replay.agent_code.leftover_state")) is not None:
        leftovers.forget()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the name of its group behind the ID of each test, where `--dist loadgroup` looks for it.

    The tests that share a fixture of their module are a group as well, so that it is made in one process alone. xdist
    3.8 puts the name of a group into an attribute that pytest 9.2 no longer reads.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        group = marker.args[0] if marker else item.path.stem if _shares(item) else None
        if group and "@" not in item.nodeid:
            item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def _shares(item: pytest.Item) -> bool:
    """Return whether a test uses a fixture of its module that is made once for all its tests."""
    used = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - it is private
    return any(each[-1].scope == "module" for each in used)

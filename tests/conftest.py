"""What holds for all tests: which run in one process, what they leave, and how what they start is interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """Hear Ctrl-C, which a shell has what it starts in the background ignore; processes that tests start inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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

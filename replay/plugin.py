"""The pytest plugin: `@pytest.mark.replay(FIXTURE)`, the `replay` fixture, and divergences in reports.

It imports nothing but pytest until a test asks for a replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from replay.replayer import Replayer


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "replay(fixture, tools='recorded', network=False, redactors=()): answer the agent under test from a recorded "
        "session; the path is relative to the test's file, else to the root directory",
    )


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Iterator[Replayer]:
    """Return a replay of the fixture that the test's `replay` marker names, open for the whole test.

    When the test ends, a divergence fails it even where the agent swallowed the exception.
    """
    from agentobs.errors import AgentobsError
    from replay.fixture import load
    from replay.options import ReplayOptions
    from replay.replayer import Replayer

    marker = request.node.get_closest_marker("replay")
    if marker is None or not marker.args:
        pytest.fail('name the fixture: @pytest.mark.replay("fixtures/NAME")', pytrace=False)
    try:
        fixture = load(_locate(Path(marker.args[0]), request))
    except AgentobsError as error:
        pytest.fail(str(error), pytrace=False)
    replayed = Replayer(fixture, ReplayOptions(**marker.kwargs))
    request.node.stash[_REPLAY] = replayed
    replayed.__enter__()
    try:
        yield replayed
    finally:
        replayed.stop()


_REPLAY = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Judge the replay when the test's function has returned, so that the test itself fails."""
    replayed = pyfuncitem.stash.get(_REPLAY, None)
    try:
        result = yield
    except Exception as error:
        if replayed is not None:
            replayed.raise_divergence(error)
        raise
    if replayed is not None:
        replayed.check()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Any:
    """Show a divergence as its report in place of a traceback."""
    report = yield
    divergence = _divergence(call.excinfo.value) if call.excinfo else None
    if divergence is not None:
        report.longrepr = divergence.text()
        report.sections.append(("divergence as JSON", divergence.json()))
    return report


def _divergence(error: BaseException | None) -> Any:
    """Return the divergence that an exception carries, or one that it was raised from."""
    while error is not None:
        if hasattr(error, "divergence"):
            return error.divergence
        error = error.__cause__ or error.__context__
    return None


def _locate(path: Path, request: pytest.FixtureRequest) -> Path:
    if path.is_absolute():
        return path
    beside = request.path.parent / path
    return beside if beside.exists() else request.config.rootpath / path

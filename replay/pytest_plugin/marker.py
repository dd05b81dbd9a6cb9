"""Markers: the arguments of `@pytest.mark.replay(...)` on a test, and the fixtures that they select."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Protocol

from agentobs.errors import UsageError
from replay.fixture.fixture_search import fixtures_in, is_fixture, split_pattern
from replay.fixture.format import FILE
from replay.scenario.replay_options import ReplayOptions


class Mark(Protocol):
    """A marker of pytest."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The paths of fixtures."""

    @property
    def kwargs(self) -> Any:
        """The options of the replay."""


def options_of(mark: Mark) -> ReplayOptions:
    """Return the replay options in a marker.

    Raises:
        UsageError: an option does not exist, or has an invalid value.
    """
    known = [each.name for each in dataclasses.fields(ReplayOptions)]
    unknown = sorted(name for name in mark.kwargs if name not in known)
    if unknown:
        raise UsageError(
            f"unknown options: {', '.join(unknown)}",
            where="@pytest.mark.replay",
            todo=f"Valid options: {', '.join(known)}",
        )
    return ReplayOptions(**mark.kwargs)


def paths_of(mark: Mark | None) -> list[Path]:
    """Return the paths in a marker, as they are written there.

    Raises:
        UsageError: there is no marker, or it contains no path.
    """
    if mark is None or not mark.args or not all(isinstance(a, str | Path) for a in mark.args):
        raise UsageError('name the fixture: @pytest.mark.replay("fixtures/NAME")')
    return [Path(each) for each in mark.args]


def located(path: Path, test_folder: Path, root: Path) -> Path:
    """Return the absolute path for a path in a marker: in the test's folder, or else under the root directory.

    If neither path exists, the path in the test's folder is returned.
    """
    if path.is_absolute():
        return path
    base, _ = split_pattern(path)
    near, far = test_folder / base, root / base
    return root / path if far.exists() and not near.exists() else test_folder / path


def several_fixtures(mark: Mark, test_folder: Path, root: Path) -> dict[str, Path] | None:
    """Return the fixtures by name if a marker contains a folder, a pattern or several paths; None if it names one.

    Raises:
        UsageError: the marker contains no path.
    """
    places = [located(path, test_folder, root) for path in paths_of(mark)]
    if len(places) == 1 and (is_fixture(places[0]) or not _has_several(places[0])):
        return None
    found: dict[str, Path] = {}
    for place in places:
        for name, path in fixtures_in(place).items() or [(place.name, place)]:
            found[name if name not in found else str(path)] = path
    return found


def file_of(place: Path) -> Path:
    """Return the file of a fixture, which need not exist, for the path of the file or of its folder."""
    return place if place.name == FILE or place.is_file() else place / FILE


def _has_several(place: Path) -> bool:
    return bool(split_pattern(place)[1]) or bool(fixtures_in(place))

"""Markers: the arguments of `@pytest.mark.replay(...)` on a test, and the fixtures that they denote."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Protocol

from agentobs.errors import UsageError
from replay.fixture.fixture_search import fixtures_in, is_one, split_pattern
from replay.fixture.format import FILE
from replay.scenario.replay_options import ReplayOptions


class Mark(Protocol):
    """A mark of pytest."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The paths of fixtures."""

    @property
    def kwargs(self) -> Any:
        """The options of the replay."""


def options_of(mark: Mark) -> ReplayOptions:
    """Return the options that a mark gives to the replay.

    Raises:
        UsageError: one of them does not exist, or cannot be so.
    """
    known = [each.name for each in dataclasses.fields(ReplayOptions)]
    unknown = sorted(name for name in mark.kwargs if name not in known)
    if unknown:
        raise UsageError(
            f"a replay has no option {', '.join(unknown)}",
            where="@pytest.mark.replay",
            todo=f"It has {', '.join(known)}",
        )
    return ReplayOptions(**mark.kwargs)


def paths_of(mark: Mark | None) -> list[Path]:
    """Return the paths that a mark names, as they are written in it.

    Raises:
        UsageError: there is no marker, or it names none.
    """
    if mark is None or not mark.args or not all(isinstance(a, str | Path) for a in mark.args):
        raise UsageError('name the fixture: @pytest.mark.replay("fixtures/NAME")')
    return [Path(each) for each in mark.args]


def located(path: Path, beside: Path, root: Path) -> Path:
    """Return the path that a marker denotes: next to the test's file, else under the root directory.

    If it is in neither place, the path next to the test is returned.
    """
    if path.is_absolute():
        return path
    base, _ = split_pattern(path)
    near, far = beside / base, root / base
    return root / path if far.exists() and not near.exists() else beside / path


def many(mark: Mark, beside: Path, root: Path) -> dict[str, Path] | None:
    """Return the fixtures by name where a mark means a folder of them, a pattern, or several; None where it means one.

    Raises:
        UsageError: it names none.
    """
    places = [located(path, beside, root) for path in paths_of(mark)]
    if len(places) == 1 and (is_one(places[0]) or not _is_many(places[0])):
        return None
    found: dict[str, Path] = {}
    for place in places:
        for name, path in fixtures_in(place).items() or [(place.name, place)]:
            found[name if name not in found else str(path)] = path
    return found


def file_of(place: Path) -> Path:
    """Return the file of the fixture that a place is, or is to be."""
    return place if place.name == FILE or place.is_file() else place / FILE


def _is_many(place: Path) -> bool:
    return bool(split_pattern(place)[1]) or bool(fixtures_in(place))

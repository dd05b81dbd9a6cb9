"""Unused fixtures: fixtures that no test uses, in folders from which tests use other fixtures.

All collected tests count, even if they are deselected, skipped or run by another worker. A folder is checked only if
the run collected all tests that may use its fixtures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.errors import UsageError
from replay.fixture.fixture_search import fixtures_folder, fixtures_in, is_fixture, unused_fixtures
from replay.pytest_plugin.marker import Mark, located, paths_of


def note_used(used: dict[str, set[str]], mark: Mark, test_folder: Path, root: Path) -> None:
    """Add the fixtures that a marker selects, by their folder; fixtures without a folder are under "".

    Args:
        used: the used fixtures by folder.
        mark: the marker of a test.
        test_folder: the folder of the test.
        root: pytest's root directory.
    """
    try:
        paths = paths_of(mark)
    except UsageError:
        return  # the test fails with this error when it runs
    for path in paths:
        place = located(path, test_folder, root)
        # The path in the marker decides: a test with its recording in the same folder does not make other recordings
        # unused.
        written = fixtures_folder(path)
        folder = place if place.is_dir() and not is_fixture(place) else written
        home = str(located(folder, test_folder, root).resolve()) if folder is not None else ""
        found = fixtures_in(place).values()
        used.setdefault(home, set()).update(str(each.resolve()) for each in found)


def unused(config: pytest.Config, used: dict[str, set[str]]) -> list[str]:
    """Return the fixtures that no collected test uses, in folders whose tests this run collected completely."""
    if (
        config.option.collectonly
        or getattr(config.option, "lf", False)
        or not _is_collected(config)
    ):
        return []
    paths = {Path(path) for group in used.values() for path in group}
    folders = [Path(folder) for folder in used if folder and _is_complete(config, Path(folder))]
    root = config.rootpath.resolve()
    return [
        str(path.relative_to(root) if path.is_relative_to(root) else path)
        for path in unused_fixtures(folders, paths)
    ]


def _is_collected(config: pytest.Config) -> bool:
    """Return whether the collection had no errors."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    errors = reporter.stats.get("error", []) if reporter is not None else []
    return not any(isinstance(each, pytest.CollectReport) for each in errors)


def _is_complete(config: pytest.Config, folder: Path) -> bool:
    """Return whether a run collected all tests that may use fixtures of a folder.

    It did if it was started in the root directory without paths, or with a directory that contains the folder.
    """
    source = pytest.Config.ArgsSource
    if config.args_source is source.TESTPATHS:
        return True
    roots = [Path(config.invocation_params.dir, each.partition("::")[0]) for each in config.args]
    narrowed = config.option.ignore or config.option.ignore_glob or config.option.deselect
    return not narrowed and any(
        root.is_dir() and folder.is_relative_to(root.resolve())
        for root, each in zip(roots, config.args, strict=True)
        if "::" not in each
    )

"""Unused fixtures: fixtures in a folder that tests name, but that no test names.

Collected tests count, not executed ones: a test that is deselected, skipped or run by another worker also names its
fixture. A folder is judged only if the run collected all tests that may name its fixtures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.errors import UsageError
from replay.fixture.fixture_search import fixtures_in, folder_named, is_one, unused
from replay.pytest_plugin.marker import Mark, located, paths_of


def note(named: dict[str, set[str]], mark: Mark, beside: Path, root: Path) -> None:
    """Note the folders that a mark names, each with the fixtures in it; fixtures without a folder under ""."""
    try:
        paths = paths_of(mark)
    except UsageError:
        return  # the test says so when it runs
    for path in paths:
        place = located(path, beside, root)
        # As written: a test next to its recording does not count for any other one.
        written = folder_named(path)
        folder = place if place.is_dir() and not is_one(place) else written
        home = str(located(folder, beside, root).resolve()) if folder is not None else ""
        found = fixtures_in(place).values()
        named.setdefault(home, set()).update(str(each.resolve()) for each in found)


def left(config: pytest.Config, named: dict[str, set[str]]) -> list[str]:
    """Return the fixtures that no collected test names, in the folders that this run collected completely."""
    if config.option.collectonly or getattr(config.option, "lf", False) or not _tests_ran(config):
        return []
    used = {Path(path) for paths in named.values() for path in paths}
    folders = [Path(folder) for folder in named if folder and _is_whole(config, Path(folder))]
    root = config.rootpath.resolve()
    return [
        str(path.relative_to(root) if path.is_relative_to(root) else path)
        for path in unused(folders, used)
    ]


def _tests_ran(config: pytest.Config) -> bool:
    """Return whether everything could be collected."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    errors = reporter.stats.get("error", []) if reporter is not None else []
    return not any(isinstance(each, pytest.CollectReport) for each in errors)


def _is_whole(config: pytest.Config, folder: Path) -> bool:
    """Return whether a run collected all tests that may name fixtures of a folder.

    This holds for a run of everything, from the root directory without paths, and for one of a directory that contains
    the folder.
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

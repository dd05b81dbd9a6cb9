"""Groups of tests that run in one process: xdist 3.8 no longer knows of them under pytest 9.2.

It puts the name of a group into an attribute that pytest does not read any more, so that each process would make each
store and each server of a group.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def name_groups(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Put the name of its group behind the id of each test, where `--dist loadgroup` looks for it."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group and "@" not in item.nodeid:
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")

"""Tests that share a store run in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.grouping import name_groups


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the groups of what is here."""
    name_groups(config, [item for item in items if Path(__file__).parent in item.path.parents])

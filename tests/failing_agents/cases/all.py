"""All failing agents by name."""

from __future__ import annotations

import importlib
import pkgutil

from tests.failing_agents import cases
from tests.failing_agents.case import Case

CASES: dict[str, Case] = {
    module.name: importlib.import_module(f"{cases.__name__}.{module.name}").CASE
    for module in pkgutil.iter_modules(cases.__path__)
    if module.name != "all"
}

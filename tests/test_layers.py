"""Checks the package diagram in ARCHITECTURE.md: imports point down, and only `world` accesses the outside."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.source_code import PACKAGES, ROOT, modules, statements, tree_of

pytestmark = pytest.mark.xdist_group("source code")

ORDER = [
    "agentobs.errors",
    "agentobs.tls",
    "agentobs.installation",
    "agentobs.records",
    "agentobs.provider",
    "agentobs.world",
    "agentobs.runtime",
    "agentobs.sink",
    "agentobs.redaction",
    "agentobs.ledger",
    "agentobs.tracing",
    "agentobs.determinism",
    "agentobs.recording.wire",
    "agentobs.recording.journal",
    "agentobs.recording.vault",
    "agentobs.recording.facts",
    "agentobs.recording.git.repository",
    "agentobs.effects",
    "agentobs.recording",
    "agentobs.agent.sdk_version",
    "agentobs.agent.arguments",
    "agentobs.agent.permissions",
    "agentobs.agent.run_result",
    "agentobs.agent.events",
    "agentobs.agent.interruption",
    "agentobs.agent.telemetry",
    "agentobs.agent.background_events",
    "agentobs.agent.broadcast",
    "agentobs.agent.budget",
    "agentobs.agent.model",
    "agentobs.agent.tools",
    "agentobs.agent.hooks",
    "agentobs.agent.context",
    "agentobs.agent.state",
    "agentobs.agent.run_check",
    "agentobs.agent.presets",
    "agentobs.agent.conversation_hooks",
    "agentobs.agent.tool_calls",
    "agentobs.agent.agent_run",
    "agentobs.agent.requests",
    "agentobs.agent.execution",
    "agentobs.agent.sub_agents",
    "agentobs.agent.lifecycle_hooks",
    "agentobs.agent.compaction",
    "agentobs.agent.sessions",
    "agentobs.agent.loop",
    "agentobs.agent",
    "agentobs.store",
    "agentobs.store.duckdb",
    "agentobs.store.maintenance",
    "agentobs.store.backend",
    "agentobs.store.billing",
    "agentobs.store.analysis",
    "agentobs.proxy",
    "agentobs.importers",
    "agentobs.importers.bundle",
    "agentobs.importers.claude_code",
    "agentobs.importers.recordings",
    "replay.comparison",
    "replay.fixture",
    "replay.workspace",
    "replay.agent_code",
    "replay.virtual_time",
    "replay.matching",
    "replay.divergence",
    "replay.scenario",
    "replay.served",
    "replay.command",
    "replay.progress",
    "replay.analysis",
    "replay.playback",
    "replay.freeze",
    "replay.trial",
    "replay.isolation",
    "replay.pytest_plugin",
    "replay",
    "exporters",
    "exporters.conventions",
    "exporters.perfetto",
    "exporters.otlp",
    "dashboards.style",
    "dashboards.content",
    "dashboards.figures",
    "dashboards.drawing",
    "dashboards.panels",
    "dashboards.notebooks",
    "dashboards.report",
    "dashboards.app",
    "dashboards",
    "agentobs",
    "agentobs.cli.terminal",
    "agentobs.cli.run",
    "agentobs.cli.replay",
    "agentobs.cli.inspection",
    "agentobs.cli.transfer",
    "agentobs.cli.maintenance",
    "agentobs.cli.demo",
    "agentobs.cli.tui",
    "agentobs.cli",
    "agentobs.pytest_plugin",
    "agentobs.__main__",
]
"""The packages, from the bottom up. A module belongs to the package with the longest matching prefix of its name. It
imports only its own package and those before it.
"""

_ABOVE = ("agentobs.agent", "agentobs.store")
NEVER = {
    "agentobs.agent": (
        "agentobs.determinism",
        "agentobs.recording",
        "agentobs.store",
        "agentobs.importers",
    ),
    "agentobs.determinism": _ABOVE,
    "agentobs.recording": _ABOVE,
    "agentobs.importers": ("replay", "exporters", "dashboards"),
    "replay": (*_ABOVE, "agentobs.importers", "exporters", "dashboards"),
    "exporters": ("replay", "dashboards"),
    "dashboards": ("replay", "exporters"),
}
"""Imports that are forbidden although the order allows them, by package."""

MODULES_MAX, LEVELS_MAX, REPEATED_MAX = 22, 8, 10
"""The maximum number of modules in a package, of levels of imports, and of module names that occur more than once."""

DEFERRED = (
    "agentobs/__main__.py",
    "agentobs/cli/",
    "agentobs/__init__.py",
    "agentobs/ledger/",
    "agentobs/pytest_plugin.py",
)
"""Files in which imports inside functions are allowed, because they make the start faster."""

AMBIENT = re.compile(
    r"\btime\.(?:time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|sleep)\("
    r"|\b(?:datetime|date)\.(?:now|utcnow|today)\("
    r"|\buuid\.uuid\d|\buuid4\(|\brandom\.\w+\(|\bsecrets\.\w+\(|\bos\.urandom\(|\bos\.environ\b"
)


@cache
def package_of(module: str) -> str:
    return max((package for package in ORDER if is_in(module, package)), key=len)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def imports(module: str) -> list[tuple[str, bool]]:
    """Return (module, whether inside a function) for each import of a module of agentobs, including imports for type
    checkers.
    """

    found: list[tuple[str, bool]] = []
    for node, deep in statements(module):
        if isinstance(node, ast.Import):
            found += [(alias.name, deep) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.append((full if full in modules() else str(node.module), deep))
    return [(name, deep) for name, deep in found if name.split(".")[0] in PACKAGES]


def wrong_imports(module: str) -> Iterator[str]:
    """Yield a description of each wrong import of a module."""
    package = package_of(module)
    never = [each for package, others in NEVER.items() if is_in(module, package) for each in others]
    for name, deep in imports(module):
        other = package_of(name)
        if ORDER.index(other) > ORDER.index(package):
            yield f"{module} imports {name}"
        if any(is_in(name, package) for package in never):
            yield f"{module} must not import {name}"
        if deep and not modules()[module].relative_to(ROOT).as_posix().startswith(DEFERRED):
            yield f"{module} defers the import of {name}"


@pytest.mark.slow
def test_imports_point_down() -> None:
    """A module imports only its own package and the packages before it."""
    assert [wrong for module in modules() for wrong in wrong_imports(module)] == []


def levels(inside: set[str]) -> dict[str, int]:
    """Return for each module the length of the longest chain of imports that starts at it and stays inside the set.

    Raises:
        AssertionError: the imports form a cycle.
    """
    done: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> int:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            below = {other for other, _ in imports(name)} & inside - {name}
            done[name] = 1 + max((visit(other, (*above, name)) for other in below), default=0)
        return done[name]

    for name in inside:
        visit(name, ())
    return done


def is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


def test_imports_are_not_circular() -> None:
    """Imports form no cycle, including imports inside functions and for type checkers."""
    levels({module for module in modules() if not is_package(module)})


def test_packages_are_small() -> None:
    """No package has too many modules or too many levels of imports, and few module names occur more than once."""
    packages: dict[str, set[str]] = {}
    for module in modules():
        if not is_package(module):
            packages.setdefault(module.rpartition(".")[0], set()).add(module)
    assert {
        package: len(inside) for package, inside in packages.items() if len(inside) > MODULES_MAX
    } == {}
    highest = {package: max(levels(inside).values()) for package, inside in packages.items()}
    assert {package: height for package, height in highest.items() if height > LEVELS_MAX} == {}
    names = Counter(path.name for path in modules().values())
    assert sum(count > 1 for name, count in names.items() if name[0] != "_") <= REPEATED_MAX


def test_only_world_accesses_the_outside() -> None:
    """Only world.py reads clocks, random numbers, IDs and the environment; the command line may use the environment."""
    found = {}
    for path in modules().values():
        relative = path.relative_to(ROOT).as_posix()
        if relative != "agentobs/world.py" and not relative.startswith("agentobs/cli/"):
            found[relative] = AMBIENT.findall(path.read_text())
    assert {relative: reads for relative, reads in found.items() if reads} == {}


def test_modules_are_documented_and_short() -> None:
    """Every module has a docstring, and no module is longer than 700 lines."""
    assert [each for each in modules() if not ast.get_docstring(tree_of(each))] == []
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules().values()}
    assert [each for each, text in texts.items() if text.count("\n") > 700] == []

"""The picture of ARCHITECTURE.md, held by a test: imports point down, and only the seam looks outside."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")

ORDER = [
    "agentobs.errors",
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
    "agentobs.recording",
    "agentobs.agent.permissions",
    "agentobs.agent.events",
    "agentobs.agent.interruption",
    "agentobs.agent.telemetry",
    "agentobs.agent.broadcast",
    "agentobs.agent.budget",
    "agentobs.agent.model",
    "agentobs.agent.tools",
    "agentobs.agent.hooks",
    "agentobs.agent.context",
    "agentobs.agent.state",
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
    "agentobs.importers",
    "agentobs.importers.bundle",
    "agentobs.importers.claude_code",
    "replay.comparison",
    "replay.fixture",
    "replay.agent_code",
    "replay.virtual_time",
    "replay.matching",
    "replay.divergence",
    "replay.scenario",
    "replay.progress",
    "replay.analysis",
    "replay.playback",
    "replay.freeze",
    "replay.trial",
    "replay.isolation",
    "replay.pytest_plugin",
    "replay.plugin",
    "replay",
    "exporters",
    "exporters.conventions",
    "exporters.perfetto",
    "exporters.otlp",
    "dashboards",
    "dashboards.content",
    "dashboards.figures",
    "dashboards.drawing",
    "dashboards.panels",
    "dashboards.report",
    "dashboards.app",
    "agentobs",
    "agentobs.cli.terminal",
    "agentobs.cli.run",
    "agentobs.cli.replay",
    "agentobs.cli.inspection",
    "agentobs.cli.transfer",
    "agentobs.cli.maintenance",
    "agentobs.cli.demo",
    "agentobs.cli",
    "agentobs.__main__",
]
"""The rooms, from the ground up. A module belongs to the longest prefix of its name. A room imports itself and what
comes before it."""

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
"""What a package must not import, although the order allows it."""

MODULES_MAX, LEVELS_MAX, REPEATED_MAX = 22, 8, 10
"""How many modules a room may have, how many levels of imports, and how many module names may recur."""

DEFERRED = ("agentobs/cli/", "agentobs/__init__.py", "agentobs/ledger/", "replay/plugin.py")
"""Where an import inside a function is allowed: start-up is paid there."""

AMBIENT = re.compile(
    r"\btime\.(?:time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|sleep)\("
    r"|\b(?:datetime|date)\.(?:now|utcnow|today)\("
    r"|\buuid\.uuid\d|\buuid4\(|\brandom\.\w+\(|\bsecrets\.\w+\(|\bos\.urandom\(|\bos\.environ\b"
)


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module and package by its name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {name_of(path): path for path in paths}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return max((room for room in ORDER if is_in(module, room)), key=len)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def imports(module: str) -> list[tuple[str, bool]]:
    """Return (imported module, whether inside a function) of each import of ours, those for type checkers included."""

    def walk(node: ast.AST, deep: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, deep) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "relative imports hide where they point"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield (full if full in modules() else str(child.module)), deep
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, deep or function)

    found = walk(ast.parse(modules()[module].read_text()), False)
    return [(name, deep) for name, deep in found if name.split(".")[0] in PACKAGES]


def wrong_imports(module: str) -> Iterator[str]:
    """Yield what is wrong with the imports of a module."""
    room = room_of(module)
    never = [each for package, others in NEVER.items() if is_in(module, package) for each in others]
    for name, deep in imports(module):
        other = room_of(name)
        if ORDER.index(other) > ORDER.index(room):
            yield f"{module} imports {name}"
        if any(is_in(name, package) for package in never):
            yield f"{module} must not import {name}"
        if deep and not modules()[module].relative_to(ROOT).as_posix().startswith(DEFERRED):
            yield f"{module} defers the import of {name}"


def test_imports_point_down() -> None:
    """A module imports only rooms that come before its own, and its own."""
    assert [wrong for module in modules() for wrong in wrong_imports(module)] == []


def levels(inside: set[str]) -> dict[str, int]:
    """Return how many modules the longest chain of imports has that starts at each module and stays inside.

    Raises:
        AssertionError: they import each other in a circle.
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


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports form no cycle; those inside functions and for type checkers count, too."""
    levels({module for module in modules() if not is_package(module)})


def test_a_room_is_small() -> None:
    """No folder has too many modules, or too many levels of imports; few module names recur."""
    rooms: dict[str, set[str]] = {}
    for module in modules():
        if not is_package(module):
            rooms.setdefault(module.rpartition(".")[0], set()).add(module)
    assert {room: len(inside) for room, inside in rooms.items() if len(inside) > MODULES_MAX} == {}
    highest = {room: max(levels(inside).values()) for room, inside in rooms.items()}
    assert {room: height for room, height in highest.items() if height > LEVELS_MAX} == {}
    names = Counter(path.name for path in modules().values())
    assert sum(count > 1 for name, count in names.items() if name[0] != "_") <= REPEATED_MAX


def test_only_the_seam_looks_outside() -> None:
    """Clocks, chance, ids and the environment are read in world.py alone; the roof may set the environment."""
    found = {}
    for path in modules().values():
        relative = path.relative_to(ROOT).as_posix()
        if relative != "agentobs/world.py" and not relative.startswith("agentobs/cli/"):
            found[relative] = AMBIENT.findall(path.read_text())
    assert {relative: reads for relative, reads in found.items() if reads} == {}


def test_a_module_is_one_idea_said_first() -> None:
    """Every module says what it is; none is longer than 700 lines."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules().values()}
    assert [each for each, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
    assert [each for each, text in texts.items() if text.count("\n") > 700] == []

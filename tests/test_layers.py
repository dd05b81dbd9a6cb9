"""The picture of ARCHITECTURE.md, held by a test: imports point down, and only the seam looks outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")

LAYERS = [
    {"agentobs.errors", "agentobs.records"},
    {"agentobs.world"},
    {"agentobs.sink", "agentobs.tracing", "agentobs.ledger", "agentobs.redaction"},
    {"agentobs.agent", "agentobs.recording"},
    {"agentobs.store"},
    {"replay", "exporters", "dashboards"},
    {"dashboards.app"},
    {"agentobs"},
    {"agentobs.cli"},
    {"agentobs.__main__"},
]
"""The rooms, from the ground up. A room imports rooms of lower layers, and itself."""

SAME_LAYER = {("agentobs.tracing", "agentobs.sink")}
"""What may be imported beside: the dispatcher, by the instrument that feeds it."""

NEVER = {
    "agentobs.agent": {"agentobs.recording", "agentobs.store"},
    "replay": {"agentobs.store", "agentobs.agent"},
    "dashboards.app": {"replay", "exporters"},
}
"""What a room must not know, though it lies lower or beside."""

DEFERRED = ("agentobs/cli/", "agentobs/__init__.py", "agentobs/ledger/", "replay/plugin.py")
"""Where an import inside a function is allowed: start-up is paid there."""

AMBIENT = re.compile(
    r"\btime\.(?:time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|sleep)\("
    r"|\b(?:datetime|date)\.(?:now|utcnow|today)\("
    r"|\buuid\.uuid\d|\buuid4\(|\brandom\.\w+\(|\bsecrets\.\w+\(|\bos\.urandom\(|\bos\.environ\b"
)


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    rooms = sorted({room for layer in LAYERS for room in layer}, key=len, reverse=True)
    return next(room for room in rooms if module == room or module.startswith(room + "."))


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield (module, whether inside a function) of each import of ours that runs."""

    def walk(node: ast.AST, deep: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, deep) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "relative imports hide where they point"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield (full if is_module(full) else str(child.module)), deep
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, deep or function)

    return ((name, deep) for name, deep in walk(tree, False) if name.split(".")[0] in PACKAGES)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def wrong_imports(path: Path) -> Iterator[str]:
    """Yield what is wrong with the imports of a module."""
    relative, room = path.relative_to(ROOT).as_posix(), room_of(name_of(path))
    rank = {each: number for number, layer in enumerate(LAYERS) for each in layer}
    for name, deep in imports(ast.parse(path.read_text())):
        other = room_of(name)
        if other == room or (room, other) in SAME_LAYER:
            continue
        if rank[other] >= rank[room] or other in NEVER.get(room, set()):
            yield f"{relative} imports {name}"
        if deep and not relative.startswith(DEFERRED):
            yield f"{relative} defers the import of {name}"


def test_imports_point_down() -> None:
    """A module imports only what lies lower than its room, or in it."""
    assert [wrong for path in sources() for wrong in wrong_imports(path)] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    """The imports that run when a module is loaded form no cycle."""
    graph = {
        name_of(path): {name for name, deep in imports(ast.parse(path.read_text())) if not deep}
        for path in sources()
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            for other in graph.get(name, set()) - {name}:
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_only_the_seam_looks_outside() -> None:
    """Clocks, chance, ids and the environment are read in world.py alone; the roof may set the environment."""
    found = {}
    for path in sources():
        relative = path.relative_to(ROOT).as_posix()
        if relative != "agentobs/world.py" and not relative.startswith("agentobs/cli/"):
            found[relative] = AMBIENT.findall(path.read_text())
    assert {relative: reads for relative, reads in found.items() if reads} == {}


def test_a_module_is_one_idea_said_first() -> None:
    """Every module says what it is; none is longer than 700 lines."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sources()}
    assert [each for each, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
    assert [each for each, text in texts.items() if text.count("\n") > 700] == []

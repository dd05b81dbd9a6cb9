"""The command that lists every use of `Label.reviewed` in the source, with its reason: `labels`."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from agentobs.errors import UsageError
from agentobs.records.display import printable

PACKAGES = ("agentobs", "replay", "exporters", "dashboards")
"""The packages that come with agentobs."""
SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "build", "dist"))
"""Directories that contain no code of the project itself; directories whose name starts with a dot are also skipped."""


REVIEWED = "review" + "ed"
"""The name to look for; split in two so that this file is not listed itself."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of `Label.reviewed`."""

    path: Path
    line: int
    text: str | None
    """The reviewed text; None if it cannot be determined."""
    reason: str | None
    """Why the text cannot contain content."""
    wrong: str = ""
    """Why the use cannot be checked; empty if it can be checked."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
def labels(paths: tuple[Path, ...]) -> None:
    """List all `Label.reviewed(...)` calls in the source, each with its reason.

    Shows the file, line, text and reason of each call. Exits with 1 if a call cannot be checked.

    PATH is a file or a directory. Default: the packages of agentobs and the current directory.
    """
    uses = [use for path in sources(paths or defaults()) for use in uses_in(path)]
    for use in uses:
        click.echo(printable(f"{_displayed_path(use.path)}:{use.line}: {_described(use)}"))
    wrong = sum(1 for use in uses if use.wrong)
    click.echo(f"{len(uses)} reviewed labels; {wrong} of them cannot be checked.")
    sys.exit(1 if wrong else 0)


def defaults() -> list[Path]:
    """Return the default search paths: the packages of agentobs, and the current directory."""
    root = Path(__file__).parents[3]
    return [path for path in (root / name for name in PACKAGES) if path.is_dir()] + [Path.cwd()]


def sources(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files under some paths, each once, sorted by name.

    Raises:
        UsageError: a path does not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(
                "no such file or directory",
                where=str(path)[:200],
                todo="Pass source files or directories that exist",
            )
        for found in _files(path):
            if (real := found.resolve()) not in seen:
                seen.add(real)
                yield found


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for inner in sorted(path.iterdir()):
        if inner.is_dir() and not inner.is_symlink():
            is_searched = not inner.name.startswith(".") and inner.name not in SKIPPED
            if is_searched and not (inner / "pyvenv.cfg").exists():
                yield from _files(inner)
        elif inner.suffix == ".py" and inner.is_file():
            yield inner


def uses_in(path: Path) -> list[Use]:
    """Return the uses of `Label.reviewed` in a file, in order."""
    try:
        source = path.read_bytes()
    except OSError as error:
        return [Use(path, 1, None, None, f"the file cannot be read: {error.strerror}")]
    if REVIEWED.encode() not in source and b"__new__" not in source:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # warnings about the file itself, such as invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Use(path, 1, None, None, f"the file cannot be parsed: {type(error).__name__}")]
    return sorted(_uses(tree, path), key=lambda use: use.line)


def _uses(tree: ast.Module, path: Path) -> Iterator[Use]:
    """Yield every use, under any name that `Label` has in the file.

    A use that does not call the function cannot be checked. A use of `reviewed` on an unknown class cannot be checked
    either, because the class may be `Label`.
    """
    names = _names_of_label(tree)
    called = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_reviewed(node.func, names)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node.func) in called:
            yield _use(node, path)
        elif isinstance(node, ast.Attribute) and node.attr == REVIEWED and id(node) not in called:
            is_label_method = _is_reviewed(node, names)
            wrong = _PASSED_AS_VALUE if is_label_method else _UNKNOWN
            yield Use(path, node.lineno, None, None, wrong)
        elif isinstance(node, ast.Constant) and node.value == REVIEWED:
            yield Use(path, node.lineno, None, None, _LOOKED_UP)
        elif _skips_validation(node, names):
            assert isinstance(node, ast.Call)
            yield Use(path, node.lineno, None, None, _UNVALIDATED)


_PASSED_AS_VALUE = (
    "the function is passed as a value here, so the arguments of its calls are unknown"
)
_LOOKED_UP = "the function is looked up by name, so the arguments of its calls are unknown"
_UNKNOWN = "cannot determine which class this is; use Label.reviewed(...)"
_UNVALIDATED = (
    "a label is created in a way that skips validation; use Label(...) or Label.reviewed(...)"
)


def _names_of_label(tree: ast.Module) -> frozenset[str]:
    """Return the names of `Label` in a file: imported names, assigned names, and subclasses."""
    names = {"Label"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names if each.name == "Label"}
    for _ in range(3):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _is_label(node.value, names):
                names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
            elif isinstance(node, ast.ClassDef) and any(_is_label(b, names) for b in node.bases):
                names.add(node.name)
    return frozenset(names)


def _is_label(node: ast.AST, names: Iterable[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Attribute) and node.attr == "Label"


def _is_reviewed(node: ast.AST, names: frozenset[str]) -> bool:
    return (
        isinstance(node, ast.Attribute) and node.attr == REVIEWED and _is_label(node.value, names)
    )


def _skips_validation(node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether this is `str.__new__(Label, ...)`, which checks nothing."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "__new__"
        and bool(node.args)
        and _is_label(node.args[0], names)
    )


def _use(call: ast.Call, path: Path) -> Use:
    keywords = {each.arg: each.value for each in call.keywords if each.arg is not None}
    text = _constant(call.args[0] if call.args else keywords.get("text"))
    reason = _constant(keywords.get("reason"))
    wrong = ""
    if text is None:
        wrong = "the text is not a constant string, so it cannot have been reviewed"
    elif reason is None or not reason.strip():
        wrong = "the reason is not a constant string; state why the text can contain no content"
    return Use(path, call.lineno, text, reason, wrong)


def _constant(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _described(use: Use) -> str:
    text = "?" if use.text is None else repr(use.text)
    return f"{text}: cannot be checked: {use.wrong}" if use.wrong else f"{text}: {use.reason}"


def _displayed_path(path: Path) -> str:
    """Return a path relative to the current directory if it is below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)

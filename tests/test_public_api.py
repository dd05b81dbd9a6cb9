"""The public API is one list of names, which completion, imports for type checkers and docs/api.md share."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import agentobs
import replay
from tests.write_api import PUBLIC, public_names

LAZY = (agentobs, replay)


@pytest.mark.parametrize("package", LAZY, ids=lambda package: str(package.__name__))
def test_each_public_name_is_listed_once(package: ModuleType) -> None:
    """The names are those that completion shows, that type checkers see, and that can be imported."""
    names = sorted(package.__all__)
    assert sorted(set(dir(package)) - {"__version__"}) == names
    assert names == sorted(set(names))
    source = ast.parse(Path(str(package.__file__)).read_text())
    [block] = [node for node in source.body if isinstance(node, ast.If)]
    typed = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {name: f"{package._MODULE_OF[name]}.{name}" for name in names}
    for name in names:
        assert getattr(package, name) is getattr(
            importlib.import_module(package._MODULE_OF[name]), name
        )


@pytest.mark.parametrize("package", LAZY, ids=lambda package: str(package.__name__))
def test_a_name_that_is_not_public_is_an_attribute_error(package: ModuleType) -> None:
    """A wrong name raises AttributeError and names the module."""
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no'"):
        package.no  # noqa: B018 - the access is the test


def test_the_version_is_that_of_the_distribution() -> None:
    """`agentobs.__version__` is the version of the installed distribution."""
    assert agentobs.__version__ == importlib.metadata.version("agentobs-kit")


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module: str) -> None:
    """Public classes and functions are documented."""
    found = importlib.import_module(module)
    named = {name: getattr(found, name) for name in public_names(module)}
    described = {n: v for n, v in named.items() if inspect.isclass(v) or inspect.isroutine(v)}
    assert [name for name, value in described.items() if not value.__doc__] == []


@pytest.mark.parametrize("package", ["agentobs", "replay", "exporters", "dashboards"])
def test_a_package_imports_little(package: str) -> None:
    """Importing a package loads none of its public modules, and no third-party package."""
    code = (
        f"import sys; before = set(sys.modules); import {package}; dir({package})\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        f"print(sorted(new - set(sys.stdlib_module_names) - {{{package!r}}}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


INTERRUPTED = """
import signal
import sys

import agentobs

seen = []


def handle(number, frame):
    agentobs.event("app.interrupted", number=1)
    agentobs.event("app.invalid", text="a plain string")
    try:
        agentobs.span
    except ImportError as error:
        seen.append(str(error))


def trace(frame, happened, argument):
    if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.endswith(sys.argv[2]):
        sys.settrace(None)
        signal.raise_signal(signal.SIGUSR1)
    return None


signal.signal(signal.SIGUSR1, handle)
if sys.argv[2] == "custom_events.py":
    agentobs.start(sys.argv[1])
    with agentobs.session("interrupted"):
        sys.settrace(trace)
        agentobs.event("app.first", number=2)
    assert agentobs.flush()
    agentobs.stop_recorder()
    print(sorted(agentobs.query("SELECT kind FROM events WHERE kind LIKE 'app.%'", home=sys.argv[1])))
else:
    sys.settrace(trace)
    agentobs.span
    print(seen)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "printed"),
    [
        ("custom_events.py", "[('app.first',), ('app.interrupted',)]"),
        (
            "tracing/__init__.py",
            "['agentobs.span is not available in a signal handler that interrupts its import; use agentobs.span once "
            "before the handler is installed']",
        ),
    ],
)
def test_a_signal_handler_may_interrupt_an_import(
    tmp_path: Path, module: str, printed: str
) -> None:
    """An event of a signal handler that interrupts the first use of a name is emitted after the import. Other names are
    one clear error.
    """
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "home"), module],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.strip() == printed, ended.stderr
    assert "an event was not emitted: " in ended.stderr
    assert "Traceback" not in ended.stderr

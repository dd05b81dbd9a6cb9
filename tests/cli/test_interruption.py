"""Ctrl-C at any time ends a command with one word and without a traceback."""

from __future__ import annotations

import subprocess
import sys

import click
import duckdb
import pytest

from agentobs import cli
from agentobs.errors import UsageError

INTERRUPTED = """
import sys

import agentobs


interrupted = sys.argv.pop(1)


class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupt())
from agentobs.__main__ import main

main()
"""


@pytest.mark.parametrize("module", ["click", "agentobs.recording.journal.home"])
def test_an_interrupted_import_is_no_traceback(tmp_path: object, module: str) -> None:
    """Ctrl-C during the import of a module, of the command line or of a command, exits with 130."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "--home", str(tmp_path), "sql", "SELECT 1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "interrupted")


def _raise_from(error: Exception, cause: BaseException) -> None:
    raise error from cause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("Query interrupted"), None),
        (duckdb.InterruptException("INTERRUPT Error: Interrupted!"), None),
        (RuntimeError("Error calling __set_name__ on 'Field' instance"), KeyboardInterrupt()),
        (UsageError("cannot open the store"), RuntimeError("Query interrupted")),
    ],
    ids=["attach", "query", "dataclass", "wrapped"],
)
def test_other_exceptions_after_an_interruption(
    error: Exception,
    cause: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An exception that DuckDB, a dataclass or agentobs raises because of Ctrl-C is not shown as an error."""
    monkeypatch.setattr(cli.cli, "main", lambda *_, **__: _raise_from(error, cause))
    with pytest.raises(SystemExit) as ended:
        cli.main(["sessions"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_other_errors_are_not_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error without an interruption is raised, so that its cause can be found."""
    monkeypatch.setattr(
        cli.cli, "main", lambda *_, **__: _raise_from(RuntimeError("no"), KeyError())
    )
    with pytest.raises(RuntimeError):
        cli.main(["sessions"])
    assert issubclass(click.Abort, RuntimeError)

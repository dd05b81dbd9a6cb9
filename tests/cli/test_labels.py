"""`agentobs labels` lists all reviewed labels with their reasons, and uses that cannot be checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentobs.cli import cli, main
from agentobs.cli.maintenance.label_audit import sources, uses_in

ROOT = Path(__file__).parents[2]

GOOD = """
import agentobs
from agentobs import Label as Word
from agentobs.records import labels
agentobs.Label.reviewed("it was late", reason="a constant of the shop")
Word.reviewed(text="too many", reason="counted")
labels.Label.reviewed(
    "a long one",
    reason="of two "
    "pieces",
)
Other = Word
Other.reviewed("by another name", reason="the same class")
"""

WRONG = """
from agentobs import Label
Label.reviewed(said, reason="whatever")
Label.reviewed(f"{said}", reason="whatever")
Label.reviewed("a" + said, reason="whatever")
Label.reviewed("no reason")
Label.reviewed("blank", reason="  ")
Label.reviewed("computed", reason=why)
make = Label.reviewed
list(map(Label.reviewed, texts))
getattr(Label, "reviewed")(said, reason="hidden")
Label.reviewed(*given, **others)
class Mine(Label): ...
Mine.reviewed(said, reason="a class of one's own")
Label("x").reviewed(said, reason="of a label")
class Kept: label = Label
Kept.label.reviewed(said, reason="of a field")
operator.attrgetter("reviewed")(Label)(said, reason="hidden")
str.__new__(Label, said)
str.__new__(Mine, said)
"""


def test_each_use_is_listed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each use is listed with file, line, text and reason, even if the class was imported under another name."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "cart.py").write_text(GOOD)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["labels", "."])
    assert result.output.splitlines() == [
        "shop/cart.py:5: 'it was late': a constant of the shop",
        "shop/cart.py:6: 'too many': counted",
        "shop/cart.py:7: 'a long one': of two pieces",
        "shop/cart.py:13: 'by another name': the same class",
        "4 reviewed labels; 0 of them cannot be checked.",
    ]
    assert result.exit_code == 0


def test_unreviewable_uses_are_errors(tmp_path: Path) -> None:
    """The exit code is 1 if a use cannot be checked.

    Examples are a text or reason that is not a constant, a use that is passed as a value, and a file that cannot be
    parsed.
    """
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "broken.py").write_text("Label.reviewed(")
    (tmp_path / "template.py").write_text("{{ nothing of this kind }} (")
    result = CliRunner().invoke(cli, ["labels", str(tmp_path)])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[-1] == "17 reviewed labels; 17 of them cannot be checked."
    found = [int(line.split("wrong.py:")[1].split(":")[0]) for line in lines if "wrong.py" in line]
    assert found == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 17, 18, 19, 20]
    assert sum("text is not a constant string" in line for line in lines) == 5
    assert sum("reason is not a constant string" in line for line in lines) == 3
    assert sum("passed as a value" in line for line in lines) == 2
    assert sum("looked up" in line for line in lines) == 2
    assert sum("which class this is" in line for line in lines) == 2
    assert sum("skips validation" in line for line in lines) == 2
    assert sum("cannot be parsed" in line for line in lines) == 1


def test_a_missing_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing path gives one clear line and no traceback."""
    with pytest.raises(SystemExit) as ended:
        main(["labels", str(tmp_path / "nothing")])
    assert ended.value.code == 1
    result = capsys.readouterr().err
    assert result.startswith("error: ")
    assert result.count("\n") == 1
    assert "no such file or directory" in result


def test_every_label_of_the_project_can_be_checked() -> None:
    """The source of the project, except its tests, has no label that cannot be checked."""
    packages = [
        ROOT / name for name in ("agentobs", "replay", "exporters", "dashboards", "benchmarks")
    ]
    files = list(sources(packages))
    assert len(files) > 150
    assert [use for path in files for use in uses_in(path) if use.wrong] == []


def test_default_paths_and_escapes(tmp_path: Path) -> None:
    """Without a path, the command searches agentobs and the current directory; control characters are escaped."""
    (tmp_path / "own.py").write_text(
        'from agentobs import Label\nLabel.reviewed("a", reason="\\x1b[31mred")\n'
    )
    ended = subprocess.run(
        [sys.executable, "-m", "agentobs.cli", "labels"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "own.py:2: 'a': \\u001b[31mred" in ended.stdout

"""Finished steps: an interrupted `make soak` continues, and figures of another commit or scale are never used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.__main__ import (
    COUNTED,
    FUZZING_INPUTS,
    LONG,
    Step,
    measured_step,
    publish,
    run_steps,
    steps,
)
from tests.soak.counted_cases import DURATIONS
from tests.soak.finished_steps import FinishedStep, FinishedSteps, commit_of, last_steps

ROOT = Path(__file__).parents[2]
STEPS = [Step(name, (name,)) for name in ("one", "two", "three")]
REPORT = "from tests.soak.figures import report; report('kills', 1, 50, 'why')"


def ended(name: str, commit: str = "c0ffee", scale: float = 1) -> FinishedStep:
    line = {"figure": name, "value": 0, "n": 1}
    return FinishedStep(name, commit, scale, "2026-11-26", "a machine", 2.5, 10.0, "", (line,))


def measuring(started: list[str], stops_at: str = "") -> Callable[[Step], FinishedStep | None]:
    """Return a function that runs fake steps; one of them is interrupted."""

    def measure(step: Step) -> FinishedStep:
        started.append(step.name)
        if step.name == stops_at:
            raise KeyboardInterrupt
        return ended(step.name)

    return measure


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    """The steps that finished before an interruption are not run again, and their figures are kept."""
    finished, started = FinishedSteps(tmp_path, "c0ffee", 1), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run_steps(STEPS, finished, measuring(started, "two"))
    assert started == ["one", "two"]
    found = run_steps(STEPS, FinishedSteps(tmp_path, "c0ffee", 1), measuring(started))
    assert started == ["one", "two", "two", "three"]
    assert found == [ended("one"), ended("two"), ended("three")]
    assert run_steps(STEPS, finished, measuring(started)) == found
    assert len(started) == 4


@pytest.mark.parametrize(("commit", "scale"), [("beef", 1), ("c0ffee", 0.5)])
def test_another_commit_or_scale_starts_over(tmp_path: Path, commit: str, scale: float) -> None:
    """Figures of another commit or scale are not used."""
    run_steps(STEPS, FinishedSteps(tmp_path, "c0ffee", 1), measuring([]))
    other, started = FinishedSteps(tmp_path, commit, scale), list[str]()
    assert other.load("one") is None
    run_steps(STEPS, other, measuring(started))
    assert started == ["one", "two", "three"]


def test_a_fresh_run_starts_over(tmp_path: Path) -> None:
    """After `clear`, no step has finished."""
    finished, started = FinishedSteps(tmp_path, "c0ffee", 1), list[str]()
    run_steps(STEPS, finished, measuring([]))
    finished.clear()
    run_steps(STEPS, finished, measuring(started))
    assert started == ["one", "two", "three"]


def test_named_steps_run_again(tmp_path: Path) -> None:
    """A step that is named runs again, and the figures of the others are kept."""
    finished, started = FinishedSteps(tmp_path, "c0ffee", 1), list[str]()
    run_steps(STEPS[:2], finished, measuring([]))
    found = run_steps(STEPS, finished, measuring(started), ["two"])
    assert started == ["two"]
    assert [each.name for each in found] == ["one", "two"]


def test_an_optional_step_runs_only_if_it_is_named(tmp_path: Path) -> None:
    started: list[str] = []
    known = [STEPS[0], replace(STEPS[1], is_optional=True)]
    finished = FinishedSteps(tmp_path, "c0ffee", 1)
    assert run_steps(known, finished, measuring(started)) == [ended("one")]
    assert run_steps(known, finished, measuring(started), ["two"]) == [ended("one"), ended("two")]
    assert started == ["one", "two"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "one"}'])
def test_a_damaged_file_is_not_used(tmp_path: Path, text: str) -> None:
    """A step whose file cannot be read runs again."""
    finished, started = FinishedSteps(tmp_path, "c0ffee", 1), list[str]()
    run_steps(STEPS, finished, measuring([]))
    (tmp_path / "one.json").write_text(text)
    run_steps(STEPS, finished, measuring(started))
    assert started == ["one"]


def test_a_killed_step_has_no_figures(tmp_path: Path) -> None:
    """A step that a signal ends, or an interrupted pytest, is not kept, so that the next run measures it."""
    finished, started = FinishedSteps(tmp_path / "soak", "c0ffee", 1), list[str]()
    code = f"{REPORT}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = Step("one", (sys.executable, "-c", code))
    interrupted = Step("one", (sys.executable, "-c", f"{REPORT}; raise SystemExit(2)", "pytest"))
    for step in (killed, interrupted):
        assert run_steps([step], finished, lambda each: measured_step(each, "", 1, tmp_path)) == []
    assert run_steps(STEPS[:1], finished, measuring(started)) == [ended("one")]
    assert started == ["one"]


def test_the_last_measurement_of_each_step_is_published(tmp_path: Path) -> None:
    """A step replaces its earlier measurement; other steps keep theirs, and steps that no longer exist are removed."""
    path, page = tmp_path / "scorecard.json", tmp_path / "scorecard.md"
    publish(ended("old"), ["old"], path, page)
    for step in (ended("two", "beef"), ended("one", "beef"), ended("two")):
        publish(step, ["one", "two"], path, page)
    assert last_steps(path, ["one", "two", "old"]) == [ended("one", "beef"), ended("two")]
    rows = {line.split(" | ")[0]: line for line in page.read_text().splitlines() if "|" in line}
    assert " | 2026-11-26 | beef | " in rows["| one"]
    assert " | 2026-11-26 | c0ffee | " in rows["| two"]
    assert "| old" not in rows


def test_a_command_is_measured(tmp_path: Path) -> None:
    """The figures that a command reports are collected, even if it fails; nothing remains from an earlier command."""
    for status in (0, 1):
        step = Step("a step", (sys.executable, "-c", f"{REPORT}; raise SystemExit({status})"))
        found = measured_step(step, "c0ffee", 0.5, tmp_path)
        assert found is not None
        [line] = found.measurements
        assert (line["figure"], line["value"], line["n"], line["note"]) == ("kills", 1, 50, "why")
        assert found.failed == (" ".join(step.command) if status else "")
        assert found.whole_seconds == found.seconds / 0.5
        finished = FinishedSteps(tmp_path / "soak", "c0ffee", 0.5)
        finished.save(found)
        assert finished.load("a step") == found


@pytest.mark.parametrize(("command", "seconds"), [((), 60), (("pytest",), 30)])
def test_the_duration_of_a_whole_run_is_estimated(
    tmp_path: Path, command: tuple[str, ...], seconds: float
) -> None:
    """Durations that a step reports are extrapolated by their cases; pytest runs two cases at once."""
    rows = [
        {"test": "a", "seconds": 2, "chosen": 1, "all": 20},
        {"test": "b", "seconds": 20, "chosen": 3, "all": 3},
    ]
    code = (
        f"import json, os; open(os.environ[{DURATIONS!r}], 'w').write(json.dumps({rows}) + '\\n')"
    )
    step = Step("a", (sys.executable, "-c", code, *command))
    found = measured_step(step, "c0ffee", 0.01, tmp_path)
    assert found is not None
    assert found.whole_seconds == seconds


def test_the_commit_includes_changes(tmp_path: Path) -> None:
    """A changed or a new file changes the commit, unless the run itself writes it."""

    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@b.test")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("code", "page"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit_of(tmp_path, ["page"])
    assert len(clean) == 12
    (tmp_path / "page").write_text("2")
    assert commit_of(tmp_path, ["page"]) == clean
    found = [clean]
    (tmp_path / "code").write_text("2")
    found.append(commit_of(tmp_path, ["page"]))
    (tmp_path / "new").write_text("1")
    found.append(commit_of(tmp_path, ["page"]))
    (tmp_path / "new").write_text("2")
    found.append(commit_of(tmp_path, ["page"]))
    assert len(set(found)) == 4
    assert all(each.startswith(f"{clean} with changes ") for each in found[1:])


def test_the_steps_of_a_whole_run() -> None:
    """Each step has its own name, its files exist, and the fuzzing has 10 million different inputs."""
    known = list(steps(1))
    assert len({step.name for step in known}) == len(known)
    for path in (*COUNTED, *(path for paths in LONG.values() for path in paths)):
        assert (ROOT / path).exists()
    fuzzing = [step.command for step in known if step.name.startswith("fuzzing")]
    assert sum(int(each[each.index("--inputs") + 1]) for each in fuzzing) == FUZZING_INPUTS
    assert len({each[-1] for each in fuzzing}) == len(fuzzing)

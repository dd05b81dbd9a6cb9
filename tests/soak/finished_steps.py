"""Finished steps of `make soak`.

In build/soak/, they are kept so that an interrupted run continues. Each step has one file of JSON with its
measurements, and the commit, the scale and the day at which they were made. A step is kept only if it has ended by
itself. Files of another commit or scale are ignored.

docs/scorecard.json is committed. It contains the last whole measurement of each step, of any commit; docs/scorecard.md
is made from it, and states the commit and the day of each figure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMIT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that has ended, with its measurements."""

    name: str
    commit: str
    """The commit that was measured, see `commit_of`."""
    scale: float
    """The share of the cases that ran."""
    day: str
    """The day on which the step ended (UTC), as YYYY-MM-DD."""
    machine: str
    """The cores, the system and the Python with which it was measured."""
    seconds: float
    """Its duration."""
    whole_seconds: float
    """Its estimated duration in a run of all cases."""
    failed: str
    """The command, if it failed; empty if it succeeded."""
    measurements: tuple[dict[str, Any], ...]
    """The lines of the scorecard that it has reported."""
    failed_files: tuple[str, ...] = ()
    """The files whose tests failed, relative to the checkout; empty if none did, or if they are unknown."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> FinishedStep:
        """Return the step that was written as an object of JSON.

        Raises:
            TypeError: the names are not those of the fields.
        """
        lists = {name: tuple(row[name]) for name in ("measurements", "failed_files") if name in row}
        return cls(**{**row, **lists})


class FinishedSteps:
    """The finished steps of one commit and scale."""

    def __init__(self, folder: Path, commit: str, scale: float) -> None:
        """Keep them in `folder`, which is created with the first of them."""
        self._folder, self._commit, self._scale = folder, commit, scale

    def load(self, name: str) -> FinishedStep | None:
        """Return a step; None if it has not finished at this commit and scale, or its file cannot be read."""
        try:
            found = FinishedStep.of(json.loads(self._path(name).read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        is_same = (found.name, found.commit, found.scale) == (name, self._commit, self._scale)
        return found if is_same else None

    def save(self, step: FinishedStep) -> None:
        """Keep a step, in place of an earlier one with its name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(step.name)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(dataclasses.asdict(step), indent=1), encoding="utf-8")
        draft.replace(path)

    def clear(self) -> None:
        """Forget all steps, including those of other commits."""
        for path in self._folder.glob("*.json"):
            path.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-').replace('/', '-')}.json"


def last_steps(path: Path, names: Iterable[str]) -> list[FinishedStep]:
    """Return the last measurements of steps in docs/scorecard.json, in the order of `names`; other steps are left out.

    Raises:
        ValueError: the file is not valid.
    """
    rows = json.loads(path.read_text("utf-8")) if path.exists() else []
    by_name = {row["name"]: FinishedStep.of(row) for row in rows}
    return [by_name[name] for name in names if name in by_name]


def write_last_steps(path: Path, steps: Iterable[FinishedStep]) -> None:
    """Write docs/scorecard.json: one line for each measurement, so that a change is easy to review."""
    rows = [dataclasses.asdict(step) for step in steps]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def commit_of(root: Path, written: Sequence[str] = ()) -> str:
    """Return the commit of a checkout; with a digest of the changes that are not committed, if there are any.

    Args:
        root: the checkout.
        written: paths that a run itself writes, so that changes in them do not matter.

    Raises:
        CalledProcessError: it is not a checkout of git.
    """
    others = ["--", ".", *(f":(exclude){path}" for path in written)]
    head = _git(root, "rev-parse", "HEAD").decode().strip()[:COMMIT_DIGITS]
    changes = _git(root, "diff", "HEAD", *others)
    for name in _git(root, "ls-files", "-z", "--others", "--exclude-standard", *others).split(
        b"\0"
    ):
        path = root / name.decode()
        if name and path.is_file():
            changes += name + path.read_bytes()
    return f"{head} with changes {hashlib.sha256(changes).hexdigest()[:8]}" if changes else head


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout

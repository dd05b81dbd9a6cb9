"""The report: what was measured, as Markdown, for the terminal and for the committed file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
DISTRIBUTIONS = ("anthropic", "httpx2", "pydantic", "duckdb", "click")
"""Those whose version moves the numbers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target, and whether it is met."""

    what: str
    target: float
    measured: float
    form: str = "{:.3f}"
    """How both numbers are shown, with their unit."""
    why: str = ""
    """Why the target is missed, where it is: one sentence."""

    @property
    def met(self) -> bool:
        """Whether what was measured is no more than the target."""
        return self.measured <= self.target


@dataclass(frozen=True, slots=True)
class Section:
    """One comparison: how it was made, its rows, and the targets that it decides."""

    title: str
    method: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdicts: tuple[Verdict, ...] = ()

    def text(self) -> str:
        """Return the section as Markdown."""
        return "\n".join([f"## {self.title}", "", self.method, "", *_table(self.header, self.rows)])


def write(sections: Sequence[Section]) -> None:
    """Write the committed file."""
    parts = [_HEAD.format(machine=_machine()), targets(sections)]
    RESULTS.write_text(
        "\n\n".join([*parts, *(s.text() for s in sections)]) + "\n", encoding="utf-8"
    )


def targets(sections: Sequence[Section]) -> str:
    """Return all targets as one table, and why those are missed that are."""
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    rows = [
        (
            v.what,
            "<= " + v.form.format(v.target),
            v.form.format(v.measured),
            "yes" if v.met else "**no**",
        )
        for v in verdicts
    ]
    missed = [f"- Missed: {v.what}. {v.why}".rstrip() for v in verdicts if not v.met]
    table = _table(("what", "target", "measured", "met"), rows)
    return "\n".join(["## Targets", "", *table, *([""] if missed else []), *missed])


def ratio_rows(rows: Sequence[tuple[str, Sequence[float]]]) -> tuple[tuple[str, ...], ...]:
    """Return rows of ratios as rows of text."""
    return tuple((name, *(f"{value:.3f}" for value in values)) for name, values in rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in DISTRIBUTIONS)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}"
    day = datetime.now(UTC).date().isoformat()
    return f"{day}. {_processor()}, {os.cpu_count()} cores, {system}. {python}, {packages}."


def _processor() -> str:
    """Return the processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


_HEAD = """\
# What agentobs costs

Written by `make bench`; do not edit. {machine}

Only ratios count. Variants of the same work take turns within each round, in changing order; each number
is the median over the rounds of a variant's cost divided by that of its floor in the same round. The rows
called "again" repeat the floor and show the noise. CPU time is the caller's thread's, or the whole
process's until the recorder's thread has written everything; wall time is the caller's."""

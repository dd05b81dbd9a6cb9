"""The results as Markdown, for the terminal and for RESULTS.md."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
DISTRIBUTIONS = ("anthropic", "httpx2", "pydantic", "duckdb", "click")
"""The packages whose versions affect the results."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and its measured value."""

    label: str
    target: float
    measured: float
    form: str = "{:.3f}"
    """The format of both numbers, with their unit."""
    why: str = ""
    """The reason if the target is missed."""
    n: int = 1
    """The number of cases or rounds behind the measured value."""

    @property
    def is_met(self) -> bool:
        """Whether the measured value is at most the target."""
        return self.measured <= self.target


@dataclass(frozen=True, slots=True)
class Section:
    """One comparison, with its method, its rows, and its targets."""

    title: str
    method: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdicts: tuple[Verdict, ...] = ()

    def text(self) -> str:
        """Return the section as Markdown."""
        return "\n".join([f"## {self.title}", "", self.method, "", *_table(self.header, self.rows)])


def write(sections: Sequence[Section]) -> None:
    """Write RESULTS.md."""
    parts = [_HEAD.format(machine=_machine()), targets(sections)]
    RESULTS.write_text(
        "\n\n".join([*parts, *(s.text() for s in sections)]) + "\n", encoding="utf-8"
    )


def write_verdicts(sections: Sequence[Section], path: Path) -> None:
    """Write the targets and the measured values as JSON, for docs/scorecard.md."""
    verdicts = [asdict(verdict) for section in sections for verdict in section.verdicts]
    path.write_text(json.dumps(verdicts), encoding="utf-8")


def targets(sections: Sequence[Section]) -> str:
    """Return all targets as one table, followed by the reasons for missed targets."""
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    rows = [
        (
            v.label,
            "<= " + v.form.format(v.target),
            v.form.format(v.measured),
            "yes" if v.is_met else "**no**",
        )
        for v in verdicts
    ]
    missed = [f"- Missed: {v.label}. {v.why}".rstrip() for v in verdicts if not v.is_met]
    table = _table(("target", "limit", "measured", "met"), rows)
    return "\n".join(["## Targets", "", *table, *([""] if missed else []), *missed])


def ratio_rows(rows: Sequence[tuple[str, Sequence[float]]]) -> tuple[tuple[str, ...], ...]:
    """Return rows of ratios formatted as text."""
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
    """Return the name of the processor, if the operating system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


_HEAD = """\
# The cost of agentobs

Written by `make bench`; do not edit. {machine}

Only ratios are meaningful. A floor is the cost of comparable work without agentobs. In each round, all variants
run once, in random order. Each ratio is the median over all rounds of the cost of a variant divided by the cost of the
floor. Rows named "floor, repeated" measure the floor a second time and show the noise. CPU time is the time of the
caller's thread, or of the process until the recorder's thread has written all records. Wall time is the time of the
caller."""

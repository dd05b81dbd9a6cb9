"""What looking for secrets costs, in plain text and in text that is made to be hostile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from agentobs.redaction import find
from agentobs.redaction.secret_context import NAMED
from agentobs.redaction.secret_kinds import KINDS
from benchmarks.measure import Cost, compare, cost_of
from benchmarks.report import Section, Verdict

SIZE = 64 * 1024
ROUNDS = 7
FLOOR = "one search for one pattern"
TYPICAL_US, HOSTILE_US = 15.0, 150.0
"""Targets, microseconds per KB."""
ROOT = Path(__file__).parent.parent

PROSE = b"The weather in Oslo is wet today, and 4 degrees; Rome has sun. " * 2000
NAMED_HOSTILE = {
    "`eyJ` x n": b"eyJ",
    "`token_` x n": b"token_",
    "`@` x n": b"@",
    "`-----BEGIN` x n": b"-----BEGIN",
    "`password` and blanks": b"password" + b" " * 200,
}
"""Texts that other tools take milliseconds for."""


def sections() -> Iterator[Section]:
    """Measure plain and hostile texts beside a floor."""
    code = b"".join(path.read_bytes() for path in sorted(ROOT.glob("agentobs/recording/**/*.py")))
    texts = {"prose": PROSE, "program code": code, **NAMED_HOSTILE}
    anchors = sorted({kind.anchor for kind in KINDS} | {named.anchor for named in NAMED})
    worst = max(anchors, key=lambda anchor: _cost(_sized(anchor)).thread_ns)
    texts[f"the worst beginning of all, `{worst.decode()}` x n"] = worst
    variants: dict[str, Callable[[int], Cost]] = {
        name: partial(_looked, _sized(text)) for name, text in texts.items()
    }
    floor = re.compile(rb"sk-ant-[A-Za-z0-9_-]{16,256}|ghp_[A-Za-z0-9]{36}")
    variants[FLOOR] = lambda _: cost_of(lambda: floor.findall(_sized(PROSE)))
    rounds = compare(variants, range(ROUNDS))
    per_kb = {
        name: median(each[name].thread_ns for each in rounds) / 1000 / (SIZE / 1024)
        for name in variants
    }
    rows = tuple((name, f"{cost:.1f} us") for name, cost in per_kb.items())
    hostile = max(per_kb[name] for name in NAMED_HOSTILE)
    yield Section(
        "Looking for secrets",
        f"CPU time of the thread per KB, median of {ROUNDS} rounds over texts of {SIZE // 1024} KB. The floor is one "
        "regular expression of two kinds over prose.",
        ("text", "cost per KB"),
        rows,
        (
            Verdict("redaction, prose, us per KB", TYPICAL_US, per_kb["prose"], "{:.1f}"),
            Verdict(
                "redaction, hostile texts, us per KB",
                HOSTILE_US,
                hostile,
                "{:.1f}",
                "Where a text is nothing but names of secrets, each of them costs a call of a pattern, about 1 us.",
            ),
        ),
    )


def _sized(text: bytes) -> bytes:
    return (text * (SIZE // len(text) + 1))[:SIZE]


def _looked(text: bytes, _: int) -> Cost:
    return _cost(text)


def _cost(text: bytes) -> Cost:
    return cost_of(lambda: find(text))

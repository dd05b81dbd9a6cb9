"""The cost of the search for secrets, in normal text and in adversarial text."""

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
FLOOR = "floor: one pattern, in prose"
TYPICAL_US, ADVERSARIAL_US = 15.0, 150.0
"""The targets, in microseconds per KB."""
ROOT = Path(__file__).parent.parent

PROSE = b"The weather in Oslo is wet today, and 4 degrees; Rome has sun. " * 2000
ADVERSARIAL_TEXTS = {
    "`eyJ` x n": b"eyJ",
    "`token_` x n": b"token_",
    "`@` x n": b"@",
    "`-----BEGIN` x n": b"-----BEGIN",
    "`password` and spaces": b"password" + b" " * 200,
}
"""Texts for which other tools need milliseconds per KB."""


def sections() -> Iterator[Section]:
    """Measure normal and adversarial texts, compared with a floor."""
    code = b"".join(path.read_bytes() for path in sorted(ROOT.glob("agentobs/recording/**/*.py")))
    texts = {"prose": PROSE, "program code": code, **ADVERSARIAL_TEXTS}
    anchors = sorted({kind.anchor for kind in KINDS} | {named.anchor for named in NAMED})
    worst = max(anchors, key=lambda anchor: _cost(_repeated(anchor)).thread_ns)
    texts[f"the slowest prefix, `{worst.decode()}` x n"] = worst
    variants: dict[str, Callable[[int], Cost]] = {
        name: partial(_cost_of_round, _repeated(text)) for name, text in texts.items()
    }
    floor = re.compile(rb"sk-ant-[A-Za-z0-9_-]{16,256}|ghp_[A-Za-z0-9]{36}")
    variants[FLOOR] = lambda _: cost_of(lambda: floor.findall(_repeated(PROSE)))
    rounds = compare(variants, range(ROUNDS))
    per_kb = {
        name: median(each[name].thread_ns for each in rounds) / 1000 / (SIZE / 1024)
        for name in variants
    }
    rows = tuple((name, f"{cost:.1f} us") for name, cost in per_kb.items())
    adversarial = max(per_kb[name] for name in ADVERSARIAL_TEXTS)
    yield Section(
        "Search for secrets",
        f"CPU time of the thread per KB, median of {ROUNDS} rounds with texts of {SIZE // 1024} KB. The floor is the "
        "search for one regular expression that matches two kinds of secrets, in prose.",
        ("text", "cost per KB"),
        rows,
        (
            Verdict("redaction, prose, us per KB", TYPICAL_US, per_kb["prose"], "{:.1f}"),
            Verdict(
                "redaction, adversarial texts, us per KB",
                ADVERSARIAL_US,
                adversarial,
                "{:.1f}",
                "If a text consists only of names of secrets, a pattern is matched at each of them, which takes "
                "about 1 us.",
            ),
        ),
    )


def _repeated(text: bytes) -> bytes:
    return (text * (SIZE // len(text) + 1))[:SIZE]


def _cost_of_round(text: bytes, _: int) -> Cost:
    return _cost(text)


def _cost(text: bytes) -> Cost:
    return cost_of(lambda: find(text))

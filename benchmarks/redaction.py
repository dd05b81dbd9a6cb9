"""The cost of the search for secrets, in normal text and in adversarial text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from agentobs.redaction import find, redact
from agentobs.redaction.secret_commands import COMMANDS
from agentobs.redaction.secret_context import NAMED
from agentobs.redaction.secret_kinds import KINDS
from benchmarks.measure import Cost, compare, cost_of
from benchmarks.report import Section, Verdict
from tests.recording.assignment_corpus import AROUND, KEY_FORMS, PASSWORD_FORMS, assignments
from tests.recording.benign_corpus import corpora
from tests.recording.secret_corpus import CONTEXTS, TOKENS, VALUES, WHOLE, Planted, planted
from tests.recording.test_assignment_corpus import missed_in_streams, remains

SIZE = 64 * 1024
ROUNDS = 7
FLOOR = "floor: one pattern, in prose"
TYPICAL_US, ADVERSARIAL_US = 15.0, 150.0
"""The targets, in microseconds per KB."""
BENIGN_BYTES = 4_000_000
"""The size of each kind of benign text."""
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
    anchors = sorted(
        {kind.anchor for kind in KINDS} | {named.anchor for named in (*NAMED, *COMMANDS)}
    )
    worst = max(anchors, key=lambda anchor: _cost(_repeated(anchor)).thread_ns)
    slowest_prefix = f"the slowest prefix, `{worst.decode()}` x n"
    texts[slowest_prefix] = worst
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
    adversarial = max(per_kb[name] for name in (*ADVERSARIAL_TEXTS, slowest_prefix))
    yield Section(
        "Search for secrets",
        f"CPU time of the thread per KB, median of {ROUNDS} rounds with texts of {SIZE // 1024} KB. The floor is the "
        "search for one regular expression that matches two kinds of secrets, in prose.",
        ("text", "cost per KB"),
        rows,
        (
            Verdict("redaction, prose, us per KB", TYPICAL_US, per_kb["prose"], "{:.1f}", n=ROUNDS),
            Verdict(
                "redaction, adversarial texts, us per KB",
                ADVERSARIAL_US,
                adversarial,
                "{:.1f}",
                "A text that only repeats a prefix of secrets contains up to 340 of them per KB; each is searched for "
                "a token and for a value, which takes about 2 us. The cost is linear in the size of the text.",
                n=ROUNDS,
            ),
        ),
    )

    yield _recall()
    yield _false_positives()


def _recall() -> Section:
    """Return the share of planted secrets that is found."""
    kinds, assigned = list(planted()), list(assignments(1))
    missed_kinds, missed_assigned = _missed(kinds), _missed(assigned)
    streamed_kinds = len(list(missed_in_streams(planted(seed=3))))
    streamed_assigned = len(list(missed_in_streams(assignments(3))))
    notations = len(PASSWORD_FORMS) + len(KEY_FORMS)
    return Section(
        "Secrets that are found",
        "Invented secrets in the texts of tests/recording/secret_corpus.py and assignment_corpus.py.",
        ("secrets", "planted", "missed", "found"),
        (
            (
                f"{len(TOKENS | VALUES | WHOLE)} kinds with a form or a name, in {len(CONTEXTS)} contexts",
                *_share(len(kinds), missed_kinds),
            ),
            (
                "the same kinds in streams with deltas of 3 to 8 characters",
                *_share(len(kinds), streamed_kinds),
            ),
            (
                f"passwords and keys in {notations} notations, in {len(AROUND)} contexts",
                *_share(len(assigned), missed_assigned),
            ),
            ("the same notations in streams", *_share(len(assigned), streamed_assigned)),
        ),
        (
            Verdict("secrets with a form, missed", 0.01, missed_kinds / len(kinds), n=len(kinds)),
            Verdict(
                "passwords and keys, missed", 0.05, missed_assigned / len(assigned), n=len(assigned)
            ),
        ),
    )


def _share(planted_count: int, missed: int) -> tuple[str, str, str]:
    return str(planted_count), str(missed), f"{1 - missed / planted_count:.3f}"


def _missed(texts: list[Planted]) -> int:
    return sum(remains(each, redact(each.text.encode()).decode()) for each in texts)


def _false_positives() -> Section:
    """Return how often benign texts are mistaken for secrets, and the cost of the search in them."""
    rows: list[tuple[str, ...]] = []
    worst = 0.0
    for name, texts in corpora(BENIGN_BYTES).items():
        size = sum(map(len, texts))
        found = sum(len(find(text)) for text in texts)
        cost = min(cost_of(lambda: [find(text) for text in texts]).thread_ns for _ in range(3))  # noqa: B023
        per_100_kb = found / max(size, 1) * 100_000
        worst = max(worst, per_100_kb)
        rows.append(
            (
                name,
                f"{size / 1e6:.1f} MB",
                f"{found}",
                f"{per_100_kb:.2f}",
                f"{cost / 1000 / max(size / 1024, 1):.1f} us",
            )
        )
    return Section(
        "Benign texts that are mistaken for secrets",
        "Files of the installed packages, and /usr/share/doc.",
        ("texts", "size", "found", "per 100 KB", "cost per KB"),
        tuple(rows),
        (Verdict("false positives per 100 KB", 1.0, worst, "{:.2f}", n=len(rows)),),
    )


def _repeated(text: bytes) -> bytes:
    return (text * (SIZE // len(text) + 1))[:SIZE]


def _cost_of_round(text: bytes, _: int) -> Cost:
    return _cost(text)


def _cost(text: bytes) -> Cost:
    return cost_of(lambda: find(text))

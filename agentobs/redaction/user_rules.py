"""User-defined redaction rules: pure functions that find secrets in a text.

A rule receives bytes and returns `(start, end, kind)` of each secret in them. If it raises, returns
anything else, or exceeds its time, it fails closed: the whole text is replaced. A failing rule must
not let through what it was made to find.
"""

from __future__ import annotations

import re
import re._constants as sre  # type: ignore[import-not-found]  # the parsed form of a pattern has no public name
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agentobs import world
from agentobs.errors import UsageError

Rule = Callable[[bytes], Iterable[tuple[int, int, str]]]
"""Returns start, end and kind of each secret in a text."""

BUDGET_NS = 250_000_000
"""Maximum time of all rules for one text, in nanoseconds. Our choice: the queue holds new records meanwhile."""
OVERRUNS_MAX = 3
"""How often a rule may exceed its time; after that it is no longer run, and each text is replaced."""
FINDINGS_MAX = 100_000
"""Maximum findings of one rule in one text."""
STEPS_MAX = 4096
"""Maximum ways in which an expression may match from one position, which limits its backtracking. Our choice."""
PIECE_BYTES = 4096
"""An expression checks its time after this many bytes. Our choice."""

_KIND = re.compile(r"[a-z0-9_]{1,40}")


class OverrunError(Exception):
    """A rule exceeded its time."""


def rule_findings(rule: Rule, text: bytes, until_ns: int) -> Iterator[tuple[int, int, str]]:
    """Yield the validated findings of a rule in a text.

    Raises:
        OverrunError: it takes longer than `until_ns` on the monotonic clock.
        ValueError: a finding is invalid, or there are too many.
        Exception: whatever the rule raises.
    """
    for count, (start, end, kind) in enumerate(rule(text)):
        if count >= FINDINGS_MAX:
            raise ValueError("too many findings")
        if not (0 <= start < end <= len(text) and _KIND.fullmatch(kind)):
            raise ValueError("not a position in the text, or not the name of a kind")
        if world.monotonic() > until_ns:
            raise OverrunError
        yield start, end, kind
    if world.monotonic() > until_ns:
        raise OverrunError


def expression(kind: str, pattern: bytes) -> Rule:
    """Return a rule that finds the matches of a regular expression, or its first group if it has
    groups.

    Every quantifier must be bounded, none may be nested inside another one that repeats, and together they may match in
    at most 4,096 ways from one position. The cost is therefore bounded for every text.

    Raises:
        UsageError: the expression is invalid or unbounded, or the kind does not match
            `[a-z0-9_]{1,40}`.
    """
    if not _KIND.fullmatch(kind):
        raise UsageError(
            "the name of a kind has lowercase letters, digits and _", where=repr(kind)[:80]
        )
    try:
        compiled = re.compile(pattern)
        parsed = parser.parse(pattern)
        ways, width = _ways(parsed), parsed.getwidth()[1]
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"not a regular expression: {error}", where=repr(pattern)[:80]) from error
    if ways > STEPS_MAX or width > PIECE_BYTES:
        raise UsageError(
            "the expression could take too long on a hostile text",
            where=repr(pattern)[:80],
            todo="Bound its quantifiers, such as {16,64} for +, or make them possessive, such "
            "as {16,64}+; do not nest them",
        )

    def rule(text: bytes) -> Iterator[tuple[int, int, str]]:
        until = world.monotonic() + BUDGET_NS
        for first in range(0, max(len(text), 1), PIECE_BYTES):
            if world.monotonic() > until:
                raise OverrunError
            for match in compiled.finditer(text, first, first + PIECE_BYTES + width):
                start, end = match.span(1 if compiled.groups and match[1] is not None else 0)
                if match.start() < first + PIECE_BYTES and start < end:
                    yield start, end, kind

    return rule


def _ways(parsed: Any, inside: bool = False) -> int:
    """Return the maximum number of ways in which a pattern can match from one position; above the
    limit if unbounded.
    """
    ways = 1
    for operation, argument in parsed:
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, inner = argument
            if most == sre.MAXREPEAT or (inside and most > 1):
                return STEPS_MAX + 1
            own = _ways(inner, inside or most > 1)
            repeated = 1 if operation is sre.POSSESSIVE_REPEAT else most - least + 1
            ways *= repeated * (own if own == 1 else own ** min(most, 16))
        elif operation is sre.SUBPATTERN:
            ways *= _ways(argument[3], inside)
        elif operation is sre.ATOMIC_GROUP:
            ways *= max(_ways(argument, inside), 1)
        elif operation is sre.BRANCH:
            ways *= sum(_ways(branch, inside) for branch in argument[1])
        elif operation in (sre.ASSERT, sre.ASSERT_NOT):
            ways *= _ways(argument[1], inside)
        elif operation in (sre.GROUPREF, sre.GROUPREF_EXISTS, sre.GROUPREF_IGNORE):
            return STEPS_MAX + 1
        if ways > STEPS_MAX:
            return ways
    return ways

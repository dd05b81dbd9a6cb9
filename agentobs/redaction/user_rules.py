"""User-defined redaction rules: pure functions that find secrets in a text.

A rule receives bytes and returns `(start, end, kind)` for each secret in them. If it raises an exception, returns
anything else or exceeds its time, the complete text is replaced, because a rule that fails must not let a secret
through.
"""

from __future__ import annotations

import re
import re._constants as sre  # type: ignore[import-not-found]  # parsed patterns have no public API
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agentobs import world
from agentobs.errors import UsageError

Rule = Callable[[bytes], Iterable[tuple[int, int, str]]]
"""Returns the start, end and kind of each secret in a text."""

BUDGET_NS = 250_000_000
"""Maximum time of all rules for one text, in nanoseconds. Our choice: new records wait in the queue."""
OVERRUNS_MAX = 3
"""The maximum number of times that a rule may exceed its time. After that it is no longer run, and each text is
replaced completely.
"""
FINDINGS_MAX = 100_000
"""Maximum number of findings of one rule in one text."""
STEPS_MAX = 4096
"""Maximum number of ways in which an expression may match from one position, which limits its backtracking. Our choice.
"""
CHUNK_BYTES = 4096
"""An expression checks its time after this many bytes. Our choice."""

_KIND = re.compile(r"[a-z0-9_]{1,40}")


class OverrunError(Exception):
    """A rule exceeded its time."""


def rule_findings(rule: Rule, text: bytes, until_ns: int) -> Iterator[tuple[int, int, str]]:
    """Yield the validated findings of a rule in a text.

    Raises:
        OverrunError: the rule is still running at `until_ns` on the monotonic clock.
        ValueError: a finding is invalid, or there are too many findings.
        Exception: any exception that the rule raises.
    """
    for count, (start, end, kind) in enumerate(rule(text)):
        if count >= FINDINGS_MAX:
            raise ValueError("too many findings")
        if not (0 <= start < end <= len(text) and _KIND.fullmatch(kind)):
            raise ValueError("the position is not in the text, or the kind is not a valid name")
        if world.monotonic() > until_ns:
            raise OverrunError
        yield start, end, kind
    if world.monotonic() > until_ns:
        raise OverrunError


def expression(kind: str, pattern: bytes) -> Rule:
    """Return a rule that finds the matches of a regular expression, or of its first group if it has groups.

    Every quantifier must be bounded and must not be inside a group that repeats, and the expression may match in at
    most 4,096 ways from one position. Therefore the running time is bounded for every text.

    Raises:
        UsageError: the expression is invalid or unbounded, or the kind does not match `[a-z0-9_]{1,40}`.
    """
    if not _KIND.fullmatch(kind):
        raise UsageError(
            "a kind must consist of 1 to 40 lowercase letters, digits and _",
            where=repr(kind)[:80],
        )
    try:
        compiled = re.compile(pattern)
        parsed = parser.parse(pattern)
        ways, width = _ways(parsed), parsed.getwidth()[1]
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"not a regular expression: {error}", where=repr(pattern)[:80]) from error
    if ways > STEPS_MAX or width > CHUNK_BYTES:
        raise UsageError(
            "the expression could take too long on a hostile text",
            where=repr(pattern)[:80],
            todo="Use bounded quantifiers, such as {16,64} instead of +, or possessive ones, such "
            "as {16,64}+, and do not nest them",
        )

    def rule(text: bytes) -> Iterator[tuple[int, int, str]]:
        until = world.monotonic() + BUDGET_NS
        for first in range(0, max(len(text), 1), CHUNK_BYTES):
            if world.monotonic() > until:
                raise OverrunError
            for match in compiled.finditer(text, first, first + CHUNK_BYTES + width):
                start, end = match.span(1 if compiled.groups and match[1] is not None else 0)
                if match.start() < first + CHUNK_BYTES and start < end:
                    yield start, end, kind

    return rule


def _ways(parsed: Any, inside: bool = False) -> int:
    """Return the maximum number of ways in which a pattern can match from one position; more than `STEPS_MAX` if the
    number is unbounded.
    """
    ways = 1
    for operation, argument in parsed:
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, inner = argument
            if most == sre.MAXREPEAT or (inside and most > 1):
                return STEPS_MAX + 1
            inner_ways = _ways(inner, inside or most > 1)
            repeated = 1 if operation is sre.POSSESSIVE_REPEAT else most - least + 1
            ways *= repeated * (inner_ways if inner_ways == 1 else inner_ways ** min(most, 16))
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

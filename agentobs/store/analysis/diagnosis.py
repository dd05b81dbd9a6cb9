"""Diagnosis: which failure signatures a session shows, with the evidence, how strongly, and what to do.

What fires is decided in SQL (`views/40_signatures.sql`), so that any client of the file gets the same answers. Here
stand the words, and what cannot be told: a signature that does not fire where nothing was recorded that it could be
seen by is no good news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from agentobs.store.named_queries import named

Known = Mapping[str, int]
"""The counts of `diagnosable`: what a session tells anything about."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A way in which agents fail, as it shows in what was recorded."""

    name: str
    """The name of its view and of its named query."""
    fires: str
    """When it fires, in words."""
    todo: str
    """What to do about it."""
    unknown: Callable[[Known], str | None] = lambda known: None
    """Why it cannot be told of a session, or None where it can."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one signature says of one session."""

    signature: str
    fires: bool
    strength: float
    """How far the strongest evidence is beyond the threshold: 1 at it, 2 at twice; 0 where it does not fire."""
    evidence: tuple[Mapping[str, Any], ...]
    """The rows of its query, in the order of time."""
    cannot_tell: str | None
    """Why nothing can be said although it does not fire; None where it does, or can."""
    todo: str
    """What to do about it."""


def _no_likeness(known: Known) -> str | None:
    if known["compared_calls"] < known["calls"]:
        return "recorded by a version that noted no likeness of inputs"
    return None


def _no_price(known: Known) -> str | None:
    if known["priced_calls"] < known["priceable_calls"]:
        return "some calls have no price"
    return None


def _no_decisions(known: Known) -> str | None:
    return None if known["told_interactions"] else "this client does not tell whom it asks"


def _no_hooks(known: Known) -> str | None:
    if not known["told_interactions"]:
        return "this client does not tell of its hooks"
    # Of a share of 0 no event is left to say so, but what the world answered is never sampled.
    is_sampled = known["sampled_hooks"] or (known["hook_answers"] and not known["kept_hooks"])
    return "only a share of what hooks did was kept (sampling)" if is_sampled else None


def _no_prompts(known: Known) -> str | None:
    if known["priceable_calls"] and not known["seen_prompts"]:
        return "recorded by a version that did not compare prompts"
    return None


def _no_kinds(known: Known) -> str | None:
    if known["sorted_errors"] < known["wire_errors"]:
        return "recorded by a version that did not sort the errors of other clients"
    return None


def _no_claims(known: Known) -> str | None:
    if known["older_starts"]:
        return "recorded by a version that noted no claims"
    return None


SIGNATURES = (
    Signature(
        "repeated_calls",
        "the same tool with like arguments in three turns in a row",
        "The agent learns nothing from the result. Say in the result what would be different next "
        "time, or refuse a call that repeats the last one",
        _no_likeness,
    ),
    Signature(
        "rising_costs",
        "each of five turns in a row costs more than the one before",
        "The history is paid again each turn. Mark the prompt for the cache (agentobs cache "
        "SESSION), shorten results, or compact earlier",
        _no_price,
    ),
    Signature(
        "full_contexts",
        "a prompt over 80 % of the window of its model",
        "Compact earlier, hand parts to sub-agents, or take a model with a larger window: answers "
        "get worse before the provider refuses",
    ),
    Signature(
        "large_results",
        "a tool's result of more than 10,000 characters in a conversation of 30 messages or more",
        "Cut the result where the tool makes it, and let the agent ask for the part that it needs: "
        "each later turn pays for all of it",
    ),
    Signature(
        "long_waits",
        "a person waited for longer than 10 s, or for a fifth of the wall time and at least 1 s",
        "Allow by a rule what is always allowed, or let a classifier answer first "
        "(docs/permissions.md); agentobs waits tells for which tools",
        _no_decisions,
    ),
    Signature(
        "repeated_denials",
        "three calls of one tool or more that were not permitted",
        "The agent does not take the hint. Leave the tool out, or say in the prompt what is not "
        "permitted and what to do instead",
        _no_kinds,
    ),
    Signature(
        "silent_hook_cancels",
        "a hook that was cancelled, while what it should have looked at went on",
        "Give it more time (timeout_s) or make it quicker; where it guards something, let it block "
        "when it has no answer (docs/hooks.md)",
        _no_hooks,
    ),
    Signature(
        "broken_caches",
        "a request that changed what the cache held, 1,024 tokens or more of it",
        "Keep what changes out of the prefix: tools in one order, dates and the like after the last "
        "mark. agentobs cache SESSION tells what it cost",
        _no_prompts,
    ),
    Signature(
        "repeated_tool_errors",
        "a tool that failed three times or more in one way, and in a fifth of its calls or more",
        "schema: say in its description what it takes, with an example. semantic: let its error say "
        "what would work. denied: see repeated_denials",
        _no_kinds,
    ),
    Signature(
        "contradictions",
        "an answer that claims success though every result that it answers is an error",
        "Read the answer beside the results (agentobs show SESSION --content), or ask a model: "
        "agentobs diagnose SESSION --judge MODEL",
        _no_claims,
    ),
)
"""All signatures, in the order in which they are told."""


def diagnose(connection: duckdb.DuckDBPyConnection, session_id: str) -> list[Verdict]:
    """Return what each signature says of a session."""
    found = _dicts(named(connection, "diagnoses", session_id=session_id))
    [known] = _dicts(named(connection, "diagnosable", session_id=session_id))
    return [_verdict(each, found, known) for each in SIGNATURES]


def diagnose_all(
    connection: duckdb.DuckDBPyConnection, since_ns: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Ask in which sessions which signature fires, of those that started since then; the rows are fetched from it."""
    bounds = _dicts(named(connection, "session_range", since_ns=since_ns))
    return named(connection, "diagnoses_by_session", since_ns=since_ns, **(bounds or [{}])[0])


def _verdict(signature: Signature, found: Iterable[Mapping[str, Any]], known: Known) -> Verdict:
    evidence = tuple(row for row in found if row["signature"] == signature.name)
    return Verdict(
        signature=signature.name,
        fires=bool(evidence),
        strength=max((row["strength"] for row in evidence), default=0.0),
        evidence=evidence,
        cannot_tell=None if evidence else signature.unknown(known),
        todo=signature.todo,
    )


def _dicts(answered: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    columns = [str(column[0]) for column in answered.description or []]
    return [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]

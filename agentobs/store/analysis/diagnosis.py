"""Diagnosis: the failure signatures found in a session, with evidence, strength and advice.

SQL decides what is found (`views/40_signatures.sql`), so any client of the file gets the same
findings. This module holds the texts, and the signatures that could not be checked: if the required
data was not recorded, the absence of a finding means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from agentobs.store.named_queries import named

Known = Mapping[str, int]
"""The counts of `diagnosable`: what data a session has."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A known pattern of failure in recordings."""

    name: str
    """The name of its view and of its named query."""
    fires: str
    """A description of when it is found."""
    todo: str
    """Advice on how to fix it."""
    unknown: Callable[[Known], str | None] = lambda known: None
    """Returns why it could not be checked for a session, or None if it could."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding for one signature in one session."""

    signature: str
    fires: bool
    strength: float
    """The ratio of the strongest evidence to the threshold: 1 at the threshold, 2 at twice; 0 if not found."""
    evidence: tuple[Mapping[str, Any], ...]
    """The rows of its query, in time order."""
    cannot_tell: str | None
    """Why the absence of a finding means nothing; None if it was found or could be checked."""
    todo: str
    """Advice on how to fix it."""


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
    # With a sampling share of 0 there are no hook events, but answers of the world are never
    # sampled.
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
"""All signatures, in the order in which they are shown."""


def diagnose(connection: duckdb.DuckDBPyConnection, session_id: str) -> list[Verdict]:
    """Return the finding for each signature in a session."""
    found = _dicts(named(connection, "diagnoses", session_id=session_id))
    [known] = _dicts(named(connection, "diagnosable", session_id=session_id))
    return [_verdict(each, found, known) for each in SIGNATURES]


def diagnose_all(
    connection: duckdb.DuckDBPyConnection, since_ns: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Query the signatures found per session, for sessions that started since an instant; fetch
    rows from the result.
    """
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

"""Diagnosis: the failure signatures found in a session, with evidence, strength and advice.

SQL decides what is found (`views/40_signatures.sql`), so any client of the file gets the same
findings. This module holds the texts, and the signatures that could not be checked: if the required
data was not recorded, the absence of a finding means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentobs.store.port import Store, Table

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
        return "recorded by a version that did not compute the similarity of inputs"
    return None


def _no_price(known: Known) -> str | None:
    if known["priced_calls"] < known["priceable_calls"]:
        return "some calls have no price"
    return None


def _no_decisions(known: Known) -> str | None:
    return None if known["told_interactions"] else "this client does not record waits for the user"


def _no_hooks(known: Known) -> str | None:
    if not known["told_interactions"]:
        return "this client does not report its hooks"
    # With a sampling share of 0 there are no hook events, but answers of the world are never
    # sampled.
    is_sampled = known["sampled_hooks"] or (known["hook_answers"] and not known["kept_hooks"])
    return "only a sample of the hook events was kept" if is_sampled else None


def _no_prompts(known: Known) -> str | None:
    if known["priceable_calls"] and not known["seen_prompts"]:
        return "recorded by a version that did not compare prompts"
    return None


def _no_kinds(known: Known) -> str | None:
    if known["sorted_errors"] < known["wire_errors"]:
        return "recorded by a version that did not classify errors of other clients"
    return None


def _no_claims(known: Known) -> str | None:
    if known["older_starts"]:
        return "recorded by a version that did not detect claims"
    return None


SIGNATURES = (
    Signature(
        "repeated_calls",
        "the same tool with similar arguments in three consecutive turns",
        "The agent learns nothing from the result. State in the result what would be "
        "different next time, or refuse a call that repeats the last one",
        _no_likeness,
    ),
    Signature(
        "rising_costs",
        "five consecutive turns that each cost more than the previous one",
        "Each turn pays for the history again. Add cache breakpoints to the prompt (agentobs cache "
        "SESSION), shorten results, or compact earlier",
        _no_price,
    ),
    Signature(
        "full_contexts",
        "a prompt that uses over 80 % of the model's context window",
        "Compact earlier, delegate parts to sub-agents, or use a model with a larger "
        "window: quality drops before the provider rejects a request",
    ),
    Signature(
        "large_results",
        "a tool's result of more than 10,000 characters in a conversation of 30 messages or more",
        "Shorten the result in the tool, and let the agent request the part that it "
        "needs: each later turn pays for all of it",
    ),
    Signature(
        "long_waits",
        "an approval took longer than 10 s, or for a fifth of the wall time and at least 1 s",
        "Add a rule for what is always allowed, or let a classifier decide first "
        "(docs/permissions.md); agentobs waits lists the tools",
        _no_decisions,
    ),
    Signature(
        "repeated_denials",
        "three or more calls of one tool that were not permitted",
        "The agent does not adapt. Remove the tool, or state in the prompt what is not "
        "permitted and what to do instead",
        _no_kinds,
    ),
    Signature(
        "silent_hook_cancels",
        "a hook that was cancelled while the action that it should have checked continued",
        "Increase its timeout (timeout_s) or make it faster; if it is a safeguard, let "
        "it block on a timeout (docs/hooks.md)",
        _no_hooks,
    ),
    Signature(
        "broken_caches",
        "a request that changed a cached prefix, 1,024 tokens or more of it",
        "Keep the prefix constant: tools in a fixed order, dates after the last "
        "breakpoint. agentobs cache SESSION shows the cost",
        _no_prompts,
    ),
    Signature(
        "repeated_tool_errors",
        "a tool that failed three or more times with the same kind of error, and in at least a fifth of its calls",
        "schema: describe its input with an example. semantic: let its error state "
        "what would work. denied: see repeated_denials",
        _no_kinds,
    ),
    Signature(
        "contradictions",
        "an answer that claims success although every result before it is an error",
        "Compare the answer with the results (agentobs show SESSION --content), or ask a model: "
        "agentobs diagnose SESSION --judge MODEL",
        _no_claims,
    ),
)
"""All signatures, in the order in which they are shown."""


def diagnose(store: Store, session_id: str) -> list[Verdict]:
    """Return the finding for each signature in a session."""
    found = store.rows("diagnoses", session_id=session_id).dicts()
    [known] = store.rows("diagnosable", session_id=session_id).dicts()
    return [_verdict(each, found, known) for each in SIGNATURES]


def diagnose_all(store: Store, since_ns: int | None = None) -> Table:
    """Return the signatures found per session, for sessions that started since an instant."""
    bounds = store.rows("session_range", since_ns=since_ns).first() or {}
    return store.rows("diagnoses_by_session", since_ns=since_ns, **bounds)


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

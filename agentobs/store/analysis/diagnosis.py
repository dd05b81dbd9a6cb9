"""Diagnosis: the failure signatures found in a session, with evidence, strength and advice.

SQL decides what is found (`views/40_signatures.sql`), so any client of the file gets the same
findings. This module adds the texts, and determines which signatures could not be checked: if the required
data was not recorded, the absence of a finding means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from agentobs.store.port import Store, Table

Known = Mapping[str, int]
"""The counts of the query `diagnosable`, which show the data that a session has."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A known pattern of failure in recordings."""

    name: str
    """The name of its view and of its named query."""
    meaning: str
    """The condition under which it is found, as text."""
    todo: str
    """Advice on how to fix it."""
    unknown: Callable[[Known], str | None] = lambda known: None
    """Returns why it could not be checked for a session, or None if it could."""
    todo_about: Mapping[str, str] = field(default_factory=dict)
    """Advice that depends on what the strongest evidence is about; `todo` for everything else."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding for one signature in one session."""

    signature: str
    is_found: bool
    strength: float
    """The strongest evidence divided by the threshold: 1 at the threshold, 2 at twice the threshold; 0 if not found."""
    evidence: tuple[Mapping[str, Any], ...]
    """The rows of its query, in time order."""
    unknown_reason: str | None
    """Why the absence of a finding means nothing; None if it was found or could be checked."""
    todo: str
    """Advice on how to fix it. Its commands contain the ID of the session."""


def _no_likeness(known: Known) -> str | None:
    if known["compared_calls"] < known["calls"]:
        return "recorded by a version that did not compute the similarity of inputs"
    return None


def _no_price(known: Known) -> str | None:
    if known["priced_calls"] < known["priceable_calls"]:
        return "some calls have no price"
    return None


def _no_decisions(known: Known) -> str | None:
    return (
        None if known["recorded_interactions"] else "this client does not record waits for the user"
    )


def _no_compactions(known: Known) -> str | None:
    if known["logged_interactions"]:
        return "the log contains only summaries that were used"
    return None if known["recorded_interactions"] else "this client does not report its compactions"


def _no_hooks(known: Known) -> str | None:
    if known["logged_interactions"]:
        return "the log does not contain cancelled hooks"
    if not known["recorded_interactions"]:
        return "this client does not report its hooks"
    # With a sampling rate of 0 there are no hook events, but the answers of hooks are always recorded.
    is_sampled = known["sampled_hooks"] or (known["hook_answers"] and not known["recorded_hooks"])
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


_RISING_TODO = MappingProxyType(
    {
        "uncached input": "Each turn pays for the whole history again. Add cache breakpoints to the prompt (see "
        "agentobs cache SESSION), shorten results, or compact earlier",
        "cache reads": "The history grows, and it is already read from the cache. Shorten results, or compact earlier",
        "cache writes": "Each turn writes more to the cache than the previous one. Shorten results. If agentobs cache "
        "SESSION shows cache misses, keep the prefix constant",
        "output": "The responses get longer. Ask for shorter responses, or let tools write long texts to files",
    }
)
SIGNATURES = (
    Signature(
        "repeated_calls",
        "the same tool with similar arguments in three consecutive turns",
        "The agent does not learn from the result. Make the result say what to change, or reject a "
        "call that repeats the previous one",
        _no_likeness,
    ),
    Signature(
        "rising_costs",
        "five consecutive turns that each cost more than the previous one",
        "The advice depends on the part of the cost that rose most: uncached input, cache reads, cache writes or "
        "output. Shorter results and an earlier compaction make all prompts cheaper",
        _no_price,
        _RISING_TODO,
    ),
    Signature(
        "full_contexts",
        "a prompt that uses more than 80% of the model's context window",
        "Compact earlier, delegate parts to sub-agents, or use a model with a larger window, "
        "because quality drops before the provider rejects a request",
    ),
    Signature(
        "large_results",
        "a tool result of more than 10,000 characters in a conversation of 30 or more messages",
        "Shorten the result in the tool, and let the agent request the part that it "
        "needs, because each later turn pays for the whole result",
    ),
    Signature(
        "long_waits",
        "an approval that took more than 10 s, or approvals that took at least 1 s and more than "
        "a fifth of an interaction's wall time",
        "Add a rule for calls that are always allowed, or let a classifier decide first "
        "(docs/permissions.md). agentobs waits lists the tools",
        _no_decisions,
    ),
    Signature(
        "repeated_denials",
        "three or more denied calls of one tool",
        "The agent does not adapt. Remove the tool, or state in the prompt which calls are not "
        "permitted and what to do instead",
        _no_kinds,
    ),
    Signature(
        "silent_hook_cancels",
        "a hook that was canceled while the action that it should have checked continued",
        "Increase the timeout of the hook (timeout_s), or make the hook faster. If it is a "
        "safeguard, let its own code deny the call before the timeout (docs/hooks.md)",
        _no_hooks,
    ),
    Signature(
        "broken_caches",
        "a request that changed 1,024 or more tokens of a cached prefix",
        "Keep the prefix constant, with tools in a fixed order and dates after the last "
        "breakpoint. agentobs cache SESSION shows the cost",
        _no_prompts,
    ),
    Signature(
        "cache_rewrites",
        "at least a tenth of the cost was paid again for tokens that had been in the cache",
        "agentobs cache SESSION shows each request and the likely cause. If the cache expired between requests, cache "
        "for 1 hour; if a request changed the prefix, keep it constant",
        _no_price,
    ),
    Signature(
        "repeated_tool_errors",
        "a tool that failed three or more times with the same kind of error, and in at least a fifth of its calls",
        "For schema errors, describe the input with an example. For timeouts, allow more time, or let the tool do less "
        "in a call. For semantic errors, make the error message say what would work. For denied calls, see "
        "repeated_denials",
        _no_kinds,
    ),
    Signature(
        "contradictions",
        "a response that claims success although every result before it is an error",
        "Compare the response with the results (agentobs show SESSION --content), or let a model "
        "compare them (agentobs diagnose SESSION --judge MODEL)",
        _no_claims,
    ),
    Signature(
        "failed_summaries",
        "two or more summaries of the conversation that were requested and not used",
        "Give the agent a memory (live_world(memory=...)) or more summary tokens (Context.summary_tokens), or shorten "
        "tool results. agentobs cost --session SESSION shows the cost",
        _no_compactions,
    ),
)
"""All signatures, in the order in which they are shown."""


def diagnose(store: Store, session_id: str) -> list[Verdict]:
    """Return the finding for each signature in a session."""
    found = store.rows("diagnoses", session_id=session_id).dicts()
    [known] = store.rows("diagnosable", session_id=session_id).dicts()
    return [_verdict(each, found, known, session_id) for each in SIGNATURES]


def diagnose_all(store: Store, since_ns: int | None = None) -> Table:
    """Return the signatures found per session, for sessions that started since an instant."""
    bounds = store.rows("session_range", since_ns=since_ns).first() or {}
    return store.rows("diagnoses_by_session", since_ns=since_ns, **bounds)


def _verdict(
    signature: Signature, found: Iterable[Mapping[str, Any]], known: Known, session_id: str
) -> Verdict:
    evidence = tuple(row for row in found if row["signature"] == signature.name)
    return Verdict(
        signature=signature.name,
        is_found=bool(evidence),
        strength=max((row["strength"] for row in evidence), default=0.0),
        evidence=evidence,
        unknown_reason=None if evidence else signature.unknown(known),
        todo=_advice(signature, evidence).replace(" SESSION", f" {session_id}"),
    )


def _advice(signature: Signature, evidence: Iterable[Mapping[str, Any]]) -> str:
    """Return the advice for the evidence of a signature."""
    strongest = max(evidence, key=lambda row: float(row["strength"]), default=None)
    about = None if strongest is None else strongest["about"]
    return signature.todo_about.get(str(about), signature.todo)

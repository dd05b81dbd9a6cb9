"""The outcome of a session: its steps and failures, failure signatures, and the state of its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from agentobs.records.display import score_value, scored_part
from agentobs.store.analysis.diagnosis import SIGNATURES, Verdict, diagnose
from agentobs.store.analysis.failed_steps import has_failed, is_denied
from agentobs.store.analysis.failure import Failure
from agentobs.store.port import Store
from dashboards.panels.panels import RestoreNames, rows_of

Row = Mapping[str, Any]


class FoundSignature(NamedTuple):
    """A failure signature that was found."""

    verdict: Verdict
    meaning: str
    """The meaning of the signature."""
    evidence: Sequence[Row]
    """Its strongest evidence."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The diagnosis of a session: failure signatures found, not found, and not checked."""

    found_signatures: Sequence[FoundSignature]
    """The strongest first."""
    not_found: Sequence[str]
    not_checked: Sequence[Verdict]


def verdicts_of(store: Store, session_id: str, most: int) -> Verdicts:
    """Return the diagnosis of a session; each signature has at most `most` rows of evidence."""
    meaning = {signature.name: signature.meaning for signature in SIGNATURES}
    verdicts = diagnose(store, session_id)
    found = sorted((each for each in verdicts if each.is_found), key=lambda each: -each.strength)
    return Verdicts(
        [FoundSignature(each, meaning[each.signature], _strongest(each, most)) for each in found],
        [each.signature for each in verdicts if not each.is_found and not each.unknown_reason],
        [each for each in verdicts if each.unknown_reason],
    )


def with_texts(verdicts: Verdicts, restore_names: RestoreNames) -> Verdicts:
    """Return a diagnosis whose evidence has the original texts in place of digests."""
    found = [
        each._replace(evidence=restore_names(each.evidence)) for each in verdicts.found_signatures
    ]
    return replace(verdicts, found_signatures=found)


def steps_of(store: Store, session_id: str) -> list[dict[str, Any]]:
    """Return the steps of a session, each with its attempt, the similarity hash of its input, and whether it failed."""
    calls = {
        (row["lane"], row["turn"], row["tool_use_id"]): row
        for row in rows_of(store, "internal/session_tool_calls", session_id=session_id)
    }
    found = []
    for step in rows_of(store, "session_steps", session_id=session_id):
        call = calls.get((step["lane"], step["turn"], step["id"]))
        attempt_id = step["id"] if step["kind"] == "request" else call and call["attempt_id"]
        is_error = step["kind"] == "tool_call" and bool(call and call["is_error"])
        is_failed = has_failed(step) or is_error
        similarity = call and call["input_similarity"]
        found.append(
            {
                **step,
                "attempt_id": attempt_id,
                "is_failed": is_failed,
                "input_similarity": similarity,
            }
        )
    return found


def failed_word(steps: Sequence[Row]) -> str:
    """Return what those of a session's steps are that did not succeed: `failed`, or `failed or denied`."""
    return "failed or denied" if any(map(is_denied, steps)) else "failed"


def shown_failure(failure: Failure | None, restore_names: RestoreNames = list) -> Failure | None:
    """Return the displayed reason why a session failed; None if it did not fail.

    Args:
        failure: the failure, from `explain_failure`.
        restore_names: replaces digests in rows by the original texts. Default: rows as stored.
    """
    if failure is None:
        return None
    [row] = restore_names([failure.row])
    before = restore_names(failure.before)
    return Failure(row, [{**step, "is_failed": has_failed(step)} for step in before])


def content_state(store: Store, session_id: str) -> Row:
    """Return the state of a session's content: content mode, time of pruning, source and redactions."""
    [found] = rows_of(store, "internal/content_state", session_id=session_id)
    return found


def _strongest(verdict: Verdict, most: int) -> list[Row]:
    ordered = sorted(verdict.evidence, key=lambda row: -row["strength"])
    return [dict(row) for row in ordered[:most]]


def scores_of(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `session_scores` for a table: the value as text, and what each score is about."""
    return [
        {
            "score": row["name"],
            "value": score_value(row["value_type"], row["value"], row["label"]),
            "of": scored_part(row["lane"], row["turn"], row["tool_use_id"]),
            "given": row["given"],
            "at_ns": row["at_ns"],
            "comment": row["comment"],
        }
        for row in rows
    ]

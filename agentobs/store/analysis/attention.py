"""The order in which sessions need attention: failed ones first, see `ATTENTION_ORDER`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from agentobs.records.labels import DIGEST
from agentobs.store.analysis.failed_steps import FailedCalls
from agentobs.store.port import Store


def by_attention(
    store: Store, sessions: Sequence[Mapping[str, Any]], signatures: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the IDs of sessions in the order in which they need attention, see `ATTENTION_ORDER`.

    The list of sessions in the dashboard has the same order.

    Args:
        store: the store.
        sessions: rows of the query `sessions`.
        signatures: the failure signatures that were found, by session ID; see `found_signatures`.
    """
    ordered = store.rows(
        "internal/by_attention",
        session_ids=[row["session_id"] for row in sessions],
        statuses=[row["status"] for row in sessions],
        signatures=[len(signatures.get(row["session_id"], ())) for row in sessions],
        costs=[row["cost_usd"] for row in sessions],
        starts=[row["started_ns"] for row in sessions],
    )
    return [str(session_id) for (session_id,) in ordered.rows]


def what_failed(
    cause: str | None,
    failed_calls: FailedCalls | None,
    signatures: Sequence[str],
    classes: Sequence[str] = (),
) -> str | None:
    """Return in words why a session needs attention; None if nothing is known.

    Args:
        cause: the cause of its failure; None if it did not fail.
        failed_calls: its tool calls that failed; None if none failed.
        signatures: the failure signatures that were found in it.
        classes: the error classes that a search found in it; those that the other words do not name come first.
    """
    if cause is None:
        calls = failed_calls.words if failed_calls else None
        cause = ", ".join(filter(None, (calls, *(each.replace("_", " ") for each in signatures))))
    unnamed = ", ".join(unnamed_classes(classes, cause))
    return "; ".join(filter(None, (unnamed, cause))) or None


def found_classes(
    rows: Sequence[Mapping[str, Any]], texts: Collection[str]
) -> dict[str, list[str]]:
    """Return the error classes in which one of some texts occurs, ignoring case, by session ID; only of sessions with
    any. Classes whose text is unknown are left out.

    Args:
        rows: the rows of `internal/error_classes`, with texts instead of digests where they are known.
        texts: the texts.
    """
    wanted = [each.casefold() for each in texts]
    found: dict[str, list[str]] = {}
    for row in rows:
        name = str(row["error_class"])
        if not name.startswith(DIGEST) and any(each in name.casefold() for each in wanted):
            found.setdefault(row["session_id"], []).append(name)
    return found


def unnamed_classes(classes: Iterable[str], text: str) -> list[str]:
    """Return the error classes that a text does not contain as whole words: `ValueError` does not name `Error`."""
    return [
        each
        for each in classes
        if not re.search(rf"(?<![\w./@:-]){re.escape(each)}(?![\w/@-]|[.:]\w)", text)
    ]


def found_signatures(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the failure signatures that were found, by session ID.

    Args:
        rows: the rows of `diagnose_all`.
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["signature"] != "failure":
            found.setdefault(row["session_id"], []).append(str(row["signature"]))
    return found

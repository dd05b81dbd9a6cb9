"""Transcript totals: the client's own count of a session's tokens, compared with the responses in the log.

Since 2.1.300, the client logs how many tokens a session has used so far. Some responses are counted but not logged,
such as those of compactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentobs.importers.claude_code.agent_threads import Thread
from agentobs.importers.claude_code.transcript_entries import COST_KIND, Entry, OtherLine, as_dict
from agentobs.importers.line_files import FAR_NS
from agentobs.provider.registry import ANTHROPIC
from agentobs.records.usage import COUNT_MAX

_COUNTS = {
    "input": "inputTokens",
    "output": "outputTokens",
    "cache_read": "cacheReadInputTokens",
    "cache_write": "cacheCreationInputTokens",
}
"""The token counts that the client reports for each model, by our names of the classes."""


def unlogged_tokens(
    entries: Sequence[Entry], threads: Iterable[Thread], others: Sequence[OtherLine]
) -> dict[str, int]:
    """Return how many tokens the client counted in addition to those of the logged responses, by kind.

    Empty if there are none, or if it is unknown: older logs have no count, and the count of a fork includes the
    original session, but the log contains only a part of that session.
    """
    counts = [each for each in others if each.kind == COST_KIND]
    if not counts or any(_is_copied(entry) for entry in entries):
        return {}
    counted = _counted(counts[-1].value)
    until_ns = _next_entry_ns(entries, counts[-1])
    logged = dict.fromkeys(_COUNTS, 0)
    for thread in threads:
        for response in thread.responses:
            if (response.entries[0].at_ns or 0) < until_ns and response.usage is not None:
                usage = ANTHROPIC.usage_rows(response.model, response.usage, "exact")[0]
                logged["input"] += usage.input_tokens or 0
                logged["output"] += usage.output_tokens or 0
                logged["cache_read"] += usage.cache_read_tokens or 0
                logged["cache_write"] += (usage.cache_write_5m_tokens or 0) + (
                    usage.cache_write_1h_tokens or 0
                )
    return {kind: counted[kind] - count for kind, count in logged.items() if counted[kind] > count}


def _next_entry_ns(entries: Iterable[Entry], count: OtherLine) -> int:
    """Return when the main agent's first entry after a count was written. Sub-agents have separate files, so their
    responses up to then may be counted, and must not be mistaken for missing responses.
    """
    later = (entry.at_ns for entry in entries if entry.agent_id is None)
    return min((at for at in later if at is not None and at > count.at_ns), default=FAR_NS)


def _is_copied(entry: Entry) -> bool:
    """Return whether an entry was copied from another session, from which this one was forked."""
    origin = entry.value.get("requestSessionId")
    return isinstance(origin, str) and origin != entry.session_id


def _counted(value: Mapping[str, Any]) -> dict[str, int]:
    models = as_dict(value.get("modelUsage")).values()
    return {
        kind: sum(_count(as_dict(each).get(name)) for each in models)
        for kind, name in _COUNTS.items()
    }


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value <= COUNT_MAX else 0

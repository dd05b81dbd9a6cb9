"""Claude Code's logs: the usage of a session, compared with an independent count."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentobs.importers.claude_code import usage_of
from agentobs.ledger import Meter

FOLDER = Path(
    os.environ.get("AGENTOBS_TRANSCRIPTS")
    or Path(__file__).parents[2].parent / "shared" / "transcripts"
)


def logs() -> list[Path]:
    found = sorted(FOLDER.glob("*/*.jsonl"))
    if not found:
        pytest.skip(f"no transcripts at {FOLDER}: set AGENTOBS_TRANSCRIPTS to their folder")
    return found


def messages(value: Any) -> Iterator[dict[str, Any]]:
    """Yield everything that looks like a response of the provider, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("usage"), dict) and "id" in value and "model" in value:
            yield value
        for inner in value.values():
            yield from messages(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from messages(inner)


def recounted() -> dict[str, Counter[str]]:
    """Count the tokens of each session, using the last line of each message ID."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for path in logs():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            for message in messages(entry):
                if message["model"] != "<synthetic>":
                    last[entry["sessionId"], message["id"]] = message["usage"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for (session_id, _), usage in last.items():
        split = usage["cache_creation"]
        counts[session_id] += Counter(
            responses=1,
            input=usage["input_tokens"],
            output=usage["output_tokens"],
            cache_read=usage["cache_read_input_tokens"],
            cache_write_5m=split["ephemeral_5m_input_tokens"],
            cache_write_1h=split["ephemeral_1h_input_tokens"],
        )
    return counts


def test_a_response_is_counted_once() -> None:
    """The token counts of a session are the sums over its message IDs, including sub-agents.

    Only the last line of each message ID counts.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for response in usage_of(logs()):
        [row] = [row for row in response.usage if row.iteration == 0]
        found[response.session_id] += Counter(
            responses=1,
            input=row.input_tokens,
            output=row.output_tokens,
            cache_read=row.cache_read_tokens,
            cache_write_5m=row.cache_write_5m_tokens,
            cache_write_1h=row.cache_write_1h_tokens,
        )
    assert found == recounted()
    assert sum(counts["responses"] for counts in found.values()) == 614


def test_a_log_can_be_priced() -> None:
    """A meter accepts the usage in a log; every model in the log has a price, and a missing stop reason is visible."""
    meter = Meter()
    meter.add_rows((row, response.at_ns) for response in usage_of(logs()) for row in response.usage)
    spent = meter.total()
    assert set(spent.by_model) == {
        "claude-opus-4-5", "claude-sonnet-4-5", "claude-opus-4-6", "claude-haiku-4-5",
    }  # fmt: skip
    assert spent.unpriced_calls == 0
    assert spent.usd is not None
    assert spent.usd > Decimal(1)
    assert spent.status == "lower_bound"


@pytest.mark.parametrize(
    "line", ["", "no json", "[]", "1", '{"type":"assistant"}', '{"type":"assistant","message":[]}']
)
def test_invalid_lines_are_skipped(tmp_path: Path, line: str) -> None:
    """Broken and foreign lines of a log are not counted, and do not stop the import."""
    path = tmp_path / "log.jsonl"
    usage = {"input_tokens": 3, "output_tokens": 4}
    message = {
        "id": "msg_1",
        "model": "claude-opus-4-6",
        "stop_reason": "end_turn",
        "usage": usage,
    }
    at = {"sessionId": "s", "timestamp": "2026-02-13T14:32:45.467Z"}
    good = {"type": "assistant", **at, "message": message}
    path.write_text(f"{line}\n{json.dumps(good)}\n")
    [response] = usage_of(path)
    assert (response.message_id, response.at_ns, response.agent_id) == (
        "msg_1", 1_770_993_165_467_000_000, None,
    )  # fmt: skip
    assert [row.certainty for row in response.usage] == ["exact"]

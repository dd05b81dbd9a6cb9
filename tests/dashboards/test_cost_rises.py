"""Rises of cost, and their causes in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentobs.records.exchanges import Answer
from agentobs.store.backend import open_store
from agentobs.store.duckdb.ingest import ingest
from dashboards.figures.phrases import finding_words
from dashboards.panels.cost_rises import MOST_RISES, RATIO, SHARE, cost_rises, slow_rises
from dashboards.panels.panels import rows_of
from tests.dashboards.live_app import serving
from tests.provider_script import streamed, text
from tests.store.recordings import a_home, attempt, end, record, session_id, start
from tests.store.wire_conversations import WireConversation

ROW = {
    "attempt_id": "a", "lane": "main", "turn": 2, "cost_usd": Decimal("0.5"), "cost_status": "exact",
    "before_usd": Decimal("0.1"), "before_cost_status": "exact",
    "output_usd": Decimal("0.01"), "before_output_usd": Decimal("0.01"),
    "output_tokens": 100, "before_output_tokens": 100, "prompt_tokens": 5_000, "before_prompt_tokens": 5_000,
    "model": "m", "before_model": "m", "service_tier": "standard", "before_service_tier": "standard",
    "result_bytes": None, "tool": None,
}  # fmt: skip
MISS = {
    "attempt_id": "a", "missed_tokens": 4_000, "wasted_usd": Decimal("0.3"), "gap_ns": 360_000_000_000,
    "reason": "expired", "changed_message": None,
}  # fmt: skip
CONTEXT = {"attempt_id": "a", "compacted": "auto", "cache_write_tokens": 900}


@pytest.mark.parametrize(
    ("changed", "miss", "context", "why"),
    [
        ({}, None, None, "no cause is known from the facts."),
        (
            {}, MISS, None,
            "4,000 cached tokens were billed again, about $0.3000 extra: "
            "the cache had expired after a pause of 6 min.",
        ),
        (
            {}, MISS | {"reason": "messages_changed", "changed_message": 3, "wasted_usd": None}, None,
            "4,000 cached tokens were billed again: changed: messages from message 3 on.",
        ),
        (
            {}, MISS, CONTEXT,
            "the conversation was compacted before it, and 900 tokens were written to the cache.",
        ),
        ({"model": "n"}, None, None, "model n instead of m."),
        (
            {"service_tier": "priority", "before_service_tier": None}, None, None,
            "service tier priority instead of unknown.",
        ),
        ({"tool": "read", "result_bytes": 120_000}, None, None, "the result of read has 120 kB."),
        (
            {"output_usd": Decimal("0.4"), "output_tokens": 4_000, "cost_status": "lower_bound"}, None, None,
            "at least 4,000 output tokens instead of 100.",
        ),
        (
            {"output_usd": Decimal("0.4"), "output_tokens": 4_000, "before_cost_status": "lower_bound"}, MISS, None,
            "4,000 cached tokens were billed again, about $0.3000 extra: "
            "the cache had expired after a pause of 6 min.",
        ),
        (
            {"prompt_tokens": 9_000, "model": "n"}, None, None,
            "model n instead of m; the prompt is longer by 4,000 tokens.",
        ),
    ],
)  # fmt: skip
def test_causes_in_words(
    changed: Mapping[str, Any],
    miss: Mapping[str, Any] | None,
    context: Mapping[str, Any] | None,
    why: str,
) -> None:
    """Each cause is stated in words; if none is known, the sentence states that."""
    [rise] = cost_rises([{**ROW, **changed}], [miss] if miss else [], [context] if context else [])
    assert rise.why == why


@pytest.mark.slow
def test_the_query_returns_clear_rises_only(tmp_path: Path) -> None:
    """A request is listed if it costs clearly more than the previous one of its lane, with the causes of both."""
    talk = WireConversation()
    for output in (10, 12, 2_000):
        [call] = talk.calls(("read", {}), input_tokens=500, output_tokens=output)
        talk.result(call, "x" * 20_000 if output == 12 else "fine")
    talk.says("Done.", input_tokens=500, output_tokens=10)
    home = a_home(tmp_path)
    record(home, talk.whole())
    ingest(home)
    limits = {"ratio": RATIO, "share": SHARE, "limit": MOST_RISES}
    with open_store(home, ingest=False) as store:
        key = {"session_id": session_id(1)}
        rows = rows_of(store, "internal/cost_rises", **key, **limits)
        [rise] = cost_rises(
            rows, rows_of(store, "cache_misses", **key), rows_of(store, "context_growth", **key)
        )
    assert rise.row["turn"] == 3
    assert rise.row["before_output_tokens"] == 12
    assert rise.why == "the result of read has 20 kB; 2,000 output tokens instead of 12."


@pytest.mark.parametrize("written", [0, 50_000])
def test_a_lower_bound_is_not_the_basis_of_a_rise(tmp_path: Path, written: int) -> None:
    """If the output of the previous request is unknown, because its response was cut, only the prompts are compared."""
    answers: list[tuple[Answer | None, dict[str, Any]]] = [
        (streamed(text("Hm.")), {}),
        (replace(streamed(text("Hm.")), chunks=streamed(text("Hm.")).chunks[:2], ending="cut"), {}),
        (None, {"output_tokens": 5_000, "cache_creation_input_tokens": written}),
    ]
    records = []
    for number, (answer, usage) in enumerate(answers, 1):
        exchange = attempt(1, number, **usage)
        records.append(exchange if answer is None else replace(exchange, answer=answer))
    home = a_home(tmp_path)
    record(home, [start(1), *records, end(1)])
    ingest(home)
    limits = {"ratio": RATIO, "share": SHARE, "limit": MOST_RISES}
    with open_store(home, ingest=False) as store:
        rows = rows_of(store, "internal/cost_rises", session_id=session_id(1), **limits)
    assert [row["before_cost_status"] for row in rows] == (["lower_bound"] if written else [])
    for rise in cost_rises(rows, [], []):
        assert rise.compares_prompts
        assert "output tokens" not in rise.why


@pytest.mark.slow
def test_the_cost_tab_explains_what_the_signature_finds(tmp_path: Path) -> None:
    """Turns that each cost a little more than the previous one are named on the tab with the cost, to which the finding
    links; both name the turn and the amounts.
    """
    talk = WireConversation()
    for turn in range(8):
        [call] = talk.calls(("read", {}), input_tokens=500 + 100 * turn, output_tokens=10)
        talk.result(call)
    talk.says("Done.", input_tokens=500, output_tokens=10)
    home = a_home(tmp_path)
    record(home, talk.whole())
    ingest(home)
    with open_store(home, ingest=False) as store:
        [found] = rows_of(store, "rising_costs", session_id=session_id(1))
    with serving(home) as client:
        page = f"/sessions/{session_id(1)}"
        cost = client.get(f"{page}?tab=cost").words
        overview = client.get(f"{page}?tab=overview")
    assert "Why the cost rises" in cost
    assert (
        f"up to turn 8: {found['detail']}. On average over these turns, uncached input rose most."
        in cost
    )
    assert f"Found once, in turn 8: uncached input, {found['detail']}." in overview.words
    assert f"{page}?tab=cost#rises" in overview.links(page)


def test_a_finding_is_one_sentence_with_its_place_and_amount() -> None:
    """The sentence about a finding names how often, where, and the strongest evidence."""
    row = {
        "signature": "rising_costs", "lane": "main", "turn": 40, "about": "cache reads", "value": 38.0,
        "detail": "from $0.0044 to $0.0072 a turn, 38 times in a row",
    }  # fmt: skip
    shorter = {**row, "value": 9.0, "turn": 90, "detail": "from $0.0001 to $0.0002 a turn"}
    assert finding_words([row], 40) == (
        "Found 40 times, most clearly in turn 40: cache reads, from $0.0044 to $0.0072 a turn, 38 times in a row."
    )
    whole = {**row, "signature": "cache_rewrites", "lane": "main/x", "agent": "x", "about": ""}
    assert finding_words([whole], 1).startswith("Found once, most clearly in turn 40 of x: from ")
    assert finding_words([{**row, "turn": None}], 1).startswith("Found once, in the session: ")
    assert slow_rises([shorter, row]) == (
        "Twice, five or more turns in a row each cost more than the previous one; "
        "the longest of these rises ended at turn 40: "
        "from $0.0044 to $0.0072 a turn, 38 times in a row. On average over these turns, cache reads rose most."
    )
    assert slow_rises([]) == ""


@pytest.mark.slow
def test_the_rewrite_of_the_cache_of_a_long_session_is_a_rise(tmp_path: Path) -> None:
    """A request that costs six times as much as the previous one is listed, even if it is less than a hundredth of the
    session.
    """
    costs = [attempt(1, turn, output_tokens=1_000) for turn in range(1, 1_000)]
    home = a_home(tmp_path)
    record(home, [start(1), *costs, attempt(1, 1_000, output_tokens=6_500), end(1)])
    ingest(home)
    limits = {"ratio": RATIO, "share": SHARE, "limit": MOST_RISES}
    with open_store(home, ingest=False) as store:
        rows = rows_of(store, "internal/cost_rises", session_id=session_id(1), **limits)
    assert [row["turn"] for row in rows] == [1_000]


@pytest.mark.slow
def test_a_rise_to_the_same_cost_is_listed(tmp_path: Path) -> None:
    """A request that costs as much as a listed one is listed too, although the request before it was less cheap. The
    number of all rises is known.
    """
    outputs = {300: 6_500, 600: 6_500, 599: 3_000}
    turns = [attempt(1, n, output_tokens=outputs.get(n, 1_000)) for n in range(1, 1_001)]
    home = a_home(tmp_path)
    record(home, [start(1), *turns, end(1)])
    ingest(home)
    limits = {"ratio": RATIO, "share": SHARE}
    with open_store(home, ingest=False) as store:
        key = {"session_id": session_id(1)}
        rows = rows_of(store, "internal/cost_rises", **key, **limits, limit=MOST_RISES)
        [first] = rows_of(store, "internal/cost_rises", **key, **limits, limit=1)
    assert [row["turn"] for row in rows] == [300, 600]
    assert (first["turn"], first["found"]) == (300, 2)

"""Waste: each kind of waste of a session has its amount and its cause in words, the largest amount first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentobs.records.exchanges import ModelExchange
from agentobs.store.analysis.waste import (
    Waste,
    session_waste,
    stored_rows,
    waste_facts,
    waste_total,
    with_share,
    without_usage,
)
from agentobs.store.backend import open_store
from agentobs.store.duckdb.ingest import ingest
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import query_rows, serving
from tests.dashboards.test_context_growth import context_event
from tests.store.recordings import T0, a_home, attempt, end, record, session_id, start
from tests.store.wire_conversations import WireConversation

SESSION = session_id(1)


def found_in(**rows: Sequence[Mapping[str, Any]]) -> list[Waste]:
    """Return the waste in rows of named queries, given by the last part of their names."""
    return session_waste(lambda name: rows.get(name.rpartition("/")[2], ()))


def miss(usd: str | None, reason: str = "expired", attempt_id: str = "a") -> dict[str, Any]:
    wasted = None if usd is None else Decimal(usd)
    return {"attempt_id": attempt_id, "wasted_usd": wasted, "reason": reason}


def rewrite(usd: str, turn: int, attempt_id: str = "c", lane: str = "main") -> dict[str, Any]:
    return {
        "attempt_id": attempt_id, "lane": lane, "turn": turn, "written_tokens": 1_000, "missed_tokens": 1_000,
        "extra_usd": Decimal(usd),
    }  # fmt: skip


def failed_turn(usd: str | None, attempt_id: str) -> dict[str, Any]:
    place = {"attempt_id": attempt_id, "lane": "main", "turn": 2}
    cost = None if usd is None else Decimal(usd)
    calls = {"tool_errors": 2, "denied_calls": 0}
    return {**place, **calls, "cost_usd": cost, "cost_status": "exact"}


def test_cache_misses_and_compactions_name_their_amounts() -> None:
    """Cache misses are counted by reason; compactions follow them."""
    misses = [miss("0.2"), miss("0.1", "unknown", "b")]
    found = found_in(cache_misses=misses, compaction_rewrites=[rewrite("0.4", 7)])
    assert [each.words for each in found] == [
        "about $0.3000 on 2 cache misses: expired $0.2000 (1), no known reason $0.1000 (1)",
        "about $0.4000 on 1 compaction (turn 7), not counted as waste: the request after it wrote 1,000 tokens to the "
        "cache, as the cache does not contain the shortened conversation yet",
    ]
    [alone] = found_in(cache_misses=misses[:1])
    assert (alone.kind, alone.words) == ("misses", "about $0.2000 on 1 cache miss (expired)")


@pytest.mark.parametrize(
    ("turns", "lane", "where"),
    [
        (
            (151, 301),
            "main",
            "2 compactions (turns 151 and 301), not counted as waste: the requests after them",
        ),
        (
            (1, 2, 3, 1_004, 5),
            "main",
            "5 compactions (turns 1, 2, 3 and 2 more), not counted as waste: the requests after them",
        ),
        ((2, 3), "main/toolu_1", "2 compactions, not counted as waste: the requests after them"),
    ],
)
def test_compactions_name_their_turns(turns: Sequence[int], lane: str, where: str) -> None:
    """The turns of the main agent are named, at most three of them; turns of sub-agents are not."""
    rows = [rewrite("0.1", turn, f"c{turn}", lane) for turn in turns]
    [found] = found_in(compaction_rewrites=rows)
    assert found.usd == Decimal("0.1") * len(turns)
    assert found.cause.startswith(where)


def test_unknown_amounts_come_last() -> None:
    """A kind of waste without a known amount follows the others; requests without usage have their own sentence."""
    failed: list[dict[str, Any]] = [
        {"attempt_id": "f", "has_usage": True, "cost_usd": Decimal("0.01"), "cost_status": "lower_bound"},
        {"attempt_id": "g", "has_usage": False, "cost_usd": None, "cost_status": None},
    ]  # fmt: skip
    prefix = {"writes": 3, "has_main": False, "tokens": 14_014, "extra_usd": None}
    made = failed_turn("0.02", "a")
    found = found_in(failed_request_costs=failed, session_turns=[made], repeated_prefixes=[prefix])
    assert waste_total(found, []) == "in total at least $0.0300"
    assert [each.words for each in found] == [
        "$0.0200 on 1 request with 2 failed tool calls (turn 2)",
        "at least $0.0100 on 1 request with a failed or cut response",
        "an unknown amount on a first prompt that 3 sub-agents sent with the same model, tools, system prompt and "
        "messages: each wrote 14,014 tokens of it to the cache, 2 of them while it was still cached",
    ]
    assert without_usage(failed) == (
        "1 failed request reported no usage. If the provider billed it, the total is too low."
    )
    assert without_usage(failed[:1]) == ""


def test_the_total_counts_a_request_once() -> None:
    """The total is a part of the cost of the session. If kinds of waste share a request, it counts once."""
    cost = [{"cost_usd": Decimal("2.00009"), "cost_status": "lower_bound"}]
    misses = [miss("0.4")]
    separate = found_in(cache_misses=misses, session_turns=[failed_turn("0.2", "c")])
    assert waste_total(separate, cost) == "in total about $0.6000 of at least $2.0000, at most 30%"
    [alone] = with_share(separate[:1], cost)
    share = "at most 20% of the cost of the session"
    assert alone.words == f"about $0.4000 ({share}) on 1 cache miss (expired)"
    assert with_share(separate[:1], []) == separate[:1]
    assert with_share(separate, cost) == separate
    assert waste_total(separate[:1], cost) == ""
    shared = found_in(cache_misses=misses, session_turns=[failed_turn("0.5", "a")])
    assert waste_total(shared, cost) == (
        "in total about $0.5000 of at least $2.0000, at most 25%; "
        "a request with several kinds of waste counts once in this sum"
    )
    exact = [{"cost_usd": Decimal(2), "cost_status": "exact"}]
    assert waste_total(separate, exact) == "in total about $0.6000 of $2.0000, 30%"


def test_partial_amounts_are_lower_bounds() -> None:
    """If some amounts of a kind are unknown, its sum, and the total, are lower bounds."""
    prefix = {"writes": 2, "has_main": True, "tokens": 10, "attempt_ids": ["p"]}
    found = found_in(
        cache_misses=[miss("0.2"), miss(None, attempt_id="b")],
        failed_request_costs=[
            {"attempt_id": each, "has_usage": True, "cost_usd": usd, "cost_status": "exact"}
            for each, usd in (("f", Decimal("0.3")), ("g", None))
        ],
        compaction_rewrites=[rewrite("0.1", 2), {**rewrite("0", 3, "d"), "extra_usd": None}],
        repeated_prefixes=[
            {**prefix, "extra_usd": Decimal("0.1"), "extras": [Decimal("0.1")]},
            {**prefix, "extra_usd": None, "extras": [None]},
        ],
    )
    assert {each.kind: each.amount for each in found} == {
        "misses": "at least about $0.2000",
        "failed_requests": "at least $0.3000",
        "prefixes": "at least about $0.1000",
        "compactions": "at least about $0.1000",
    }
    assert "2 requests with failed or cut responses" in found[0].words
    cost = [{"cost_usd": Decimal(1), "cost_status": "exact"}]
    assert waste_total(found, cost) == "in total at least about $0.6000 of $1.0000, at least 60%"


def test_an_amount_of_zero_is_known() -> None:
    """A kind of waste that cost nothing does not make the total a lower bound."""
    made = failed_turn("1", "a")
    failed = [
        {"attempt_id": "f", "has_usage": True, "cost_usd": Decimal(1), "cost_status": "exact"}
    ]
    found = found_in(cache_misses=[miss("0")], session_turns=[made], failed_request_costs=failed)
    cost = [{"cost_usd": Decimal(3), "cost_status": "exact"}]
    assert waste_total(found, cost) == "in total $2.0000 of $3.0000, 67%"


@pytest.mark.parametrize(
    ("unknown", "status", "total", "words"),
    [
        ([None], "exact", 3, "at least $0.0014 of $3.0000"),
        ([], "exact", 3, "$0.0014 of $3.0000, <1%"),
        ([], "lower_bound", 3, "$0.0014 of at least $3.0000, <1%"),
        ([], "lower_bound", "0.00140001", "$0.0014 of at least $0.0014"),
        ([None], "exact", "0.00140001", "at least $0.0014 of $0.0014, >99%"),
    ],
)
def test_a_share_is_never_an_impossible_bound(
    unknown: list[None], status: str, total: Any, words: str
) -> None:
    """`<1%` is not a lower bound, and `>99%` is not an upper bound."""
    amounts = ["0.0007", *unknown]
    made = [failed_turn("0.0007", "a")]
    failed = [
        {
            "attempt_id": f"f{at}",
            "has_usage": True,
            "cost_usd": None if each is None else Decimal(each),
            "cost_status": "exact",
        }
        for at, each in enumerate(amounts)
    ]
    found = found_in(session_turns=made, failed_request_costs=failed)
    cost = [{"cost_usd": Decimal(total), "cost_status": status}]
    assert waste_total(found, cost) == f"in total {words}"


def test_compactions_are_not_waste() -> None:
    """The extra cost of compactions has a separate line and label, and is not in the total."""
    cost = [{"cost_usd": Decimal(2), "cost_status": "exact"}]
    rewrites = [rewrite("0.4", 7)]
    found = found_in(cache_misses=[miss("0.2")], compaction_rewrites=rewrites, cost_by_session=cost)
    assert found[0].words == (
        "about $0.2000 (10% of the cost of the session) on 1 cache miss (expired)"
    )
    assert (found[1].share, waste_total(found, cost)) == ("", "")
    found = found_in(
        cache_misses=[miss("0.2")],
        compaction_rewrites=rewrites,
        session_turns=[failed_turn("0.1", "b")],
    )
    total = waste_total(found, cost)
    assert total == "in total about $0.3000 of $2.0000, 15%"
    labels = [label for label, _ in waste_facts(found, total)]
    assert labels == ["wasted", "wasted", "wasted", "compacted"]
    assert waste_facts(found, total)[2][1] == total


def test_the_share_of_two_lower_bounds_is_unknown() -> None:
    """If the amount of one kind is unknown, the share is at least that of the others. If the cost of the session is a
    lower bound as well, the share is left out.
    """
    waste = found_in(
        cache_misses=[miss("0.2")],
        failed_request_costs=[
            {
                "attempt_id": "f",
                "has_usage": True,
                "cost_usd": Decimal("0.4"),
                "cost_status": "exact",
            }
        ],
        session_turns=[failed_turn(None, "c")],
    )
    exact = [{"cost_usd": Decimal(2), "cost_status": "exact"}]
    assert waste_total(waste, exact) == "in total at least about $0.6000 of $2.0000, at least 30%"
    low = [{"cost_usd": Decimal(2), "cost_status": "lower_bound"}]
    assert waste_total(waste, low) == "in total at least about $0.6000 of at least $2.0000"


def test_the_amount_of_compactions_is_explained() -> None:
    """Uncached input and summaries are named, so that the amount follows from what is named."""
    row = {**rewrite("0.4", 7), "missed_tokens": 1_300}
    summary = {"attempt_id": "s", "calls": 1, "cost_usd": Decimal("0.1"), "cost_status": "exact"}
    wrote = (
        "the request after it wrote 1,000 tokens to the cache and sent 300 uncached, "
        "as the cache does not contain the shortened conversation yet"
    )
    start = "on 1 compaction (turn 7), not counted as waste:"
    [found] = found_in(compaction_rewrites=[row])
    assert found.words == f"about $0.4000 {start} {wrote}"
    [both] = found_in(compaction_rewrites=[row], compaction_cost=[summary])
    assert both.words == (
        f"about $0.5000 {start} about $0.4000, because {wrote}; 1 summary cost $0.1000"
    )


@pytest.mark.slow
def test_all_places_name_the_same_waste(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compaction that is not a cache miss has the extra cost of its cache writes, on the page and in the terminal."""
    home = a_home(tmp_path)
    first = attempt(1, 1, cache_creation_input_tokens=20_000)
    event = replace(
        context_event("compaction", 2.5, "auto", tokens_before=9_000), session_id=SESSION
    )
    later = attempt(1, 3, cache_creation_input_tokens=14_000)
    failed = attempt(1, 4, status=529)
    record(home, [start(1, "long"), first, event, later, failed, end(1)])
    ingest(home)
    with open_store(home, ingest=False) as store:
        [found] = session_waste(stored_rows(store, SESSION))
        [row] = store.rows("internal/compaction_rewrites", session_id=SESSION).dicts()
    price = "SELECT DISTINCT cache_write_5m_usd_each - cache_read_usd_each FROM costs"
    [[extra]] = query_rows(home, f"{price} WHERE cache_write_5m_tokens > 0")
    assert (row["turn"], row["written_tokens"]) == (2, 14_000)
    assert found.usd == 14_000 * extra
    shell = Shell(home.path, capsys)
    for command in ("show", "cache"):
        assert found.words in shell(command, SESSION).out
    assert "failed request reported no usage" in shell("show", SESSION).out
    rows = [json.loads(line) for line in shell("cache", "--json").out.splitlines()]
    [listed] = [each for each in rows if each["session_id"] == SESSION]
    assert (listed["misses"], listed["compactions"]) == (0, 1)
    assert Decimal(str(listed["compaction_usd"])) == found.usd
    [line] = [each for each in shell("cache", SESSION).out.splitlines() if "  compaction  " in each]
    assert " 14,000 " in line
    with serving(home) as client:
        words = client.get(f"/sessions/{SESSION}?tab=cost").words
    assert f"{found.amount.capitalize()} on {found.cause}." in words
    panel = (
        f"The first request after 1 compaction cost {found.amount} more than reads from the cache."
    )
    assert panel in words
    assert "1 failed request reported no usage." in words
    heading = words.index("What compactions cost")
    assert words.index("What was wasted") < heading < words.index(found.cause)
    assert heading < words.index("Tokens and cost per turn")


def test_the_diagnosis_names_what_it_does_not_count(tmp_path: Path) -> None:
    """The evidence of rewritten caches names the cost of cache misses after compactions, which it does not include."""
    talk = WireConversation()
    for _ in range(3):
        talk.says("Hm.", cache_creation_input_tokens=90_000)
        talk.prompt()
    requests = [each for each in talk.records if isinstance(each, ModelExchange)]
    at = (requests[1].started_ns - T0) / 1_000_000_000 - 0.01
    event = replace(context_event("compaction", at, "auto"), session_id=SESSION)
    home = a_home(tmp_path)
    record(home, [*talk.records, event, end(1)])
    ingest(home)
    with open_store(home, ingest=False) as store:
        [found] = store.rows("cache_rewrites", session_id=SESSION).dicts()
        [other] = store.rows("cache_misses", session_id=SESSION).dicts()
        [compacted] = store.rows("internal/compaction_rewrites", session_id=SESSION).dicts()
        [listed] = store.rows("cache_by_session", session_id=SESSION).dicts()
        waste = session_waste(stored_rows(store, SESSION))
    # The view, the command and the page have the same number of cache misses.
    assert (listed["misses"], listed["compactions"]) == (1, 1)
    assert other["reason"] != "compaction"
    assert other["attempt_id"] != compacted["attempt_id"]
    amounts = {each.kind: each.amount for each in waste}
    assert amounts["compactions"].removeprefix("about ") in found["detail"]
    assert found["detail"].startswith(amounts["misses"])
    assert found["detail"].startswith(f"about ${float(other['wasted_usd']):.4f}".rstrip("0"))
    assert f", without ${float(compacted['extra_usd']):.4f}".rstrip("0") in found["detail"]
    assert found["detail"].endswith(" after compactions")
    assert {each.kind for each in waste} == {"misses", "compactions"}

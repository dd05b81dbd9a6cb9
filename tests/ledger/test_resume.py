"""Resume: the totals of a session are restored from the store, without the totals of other sessions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agentobs import wiring
from agentobs.errors import UsageError
from agentobs.store.duckdb.ingest import ingest
from tests import queries
from tests.store.recordings import (
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)


@pytest.mark.slow
def test_the_totals_of_a_session_are_restored(tmp_path: Path) -> None:
    """Calls of the session, whether ingested or not, are counted once; the calls of another session are not
    included.
    """
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2)])
    record(home, [start(2), attempt(2, 1, input_tokens=1_000_000), end(2)])
    ingest(home)
    record(home, [attempt(1, 3)])
    own = wiring.meter_of(session_id(1), home.path)
    [(usd,)] = queries.query(
        "SELECT sum(cost_usd) FROM costs WHERE session_id = ?", [session_id(1)], home=home.path
    )
    assert (own.total().calls, own.total().usd, own.total().status) == (3, usd, "exact")
    assert wiring.meter_of(session_id(2), home.path).total().calls == 1
    own.add("claude-sonnet-5-5", {"input_tokens": 10, "output_tokens": 20}, 1_790_000_000 * 10**9)
    assert own.total().calls == 4


def test_a_batch_result_belongs_to_the_first_session(tmp_path: Path) -> None:
    """A batch result counts only in the session that fetched it first, not in another session that fetches it later."""
    home = a_home(tmp_path)
    first = usage_row(1, batch_result_id="msgbatch_1/a")
    again = dataclasses.replace(
        first, session_id=session_id(2), at_ns=first.at_ns + 1, attempt_id="f" * 32
    )
    write_facts(home, [first, again])
    found = [wiring.meter_of(each.session_id, home.path).total().calls for each in (first, again)]
    assert found == [1, 0]


def test_a_restored_total_without_lost_records_is_a_lower_bound(tmp_path: Path) -> None:
    """If a session lost records, its restored total is a lower bound."""
    home = a_home(tmp_path)
    record(home, [start(1), dataclasses.replace(attempt(1, 1), lost_bytes=9), end(1)])
    assert wiring.meter_of(session_id(1), home.path).total().status == "lower_bound"


def test_an_unknown_session_is_an_error(tmp_path: Path) -> None:
    """An unknown session is one error, not an empty meter."""
    home = a_home(tmp_path)
    record(home, [start(1)])
    with pytest.raises(UsageError, match="no session with that ID"):
        wiring.meter_of("none", home.path)

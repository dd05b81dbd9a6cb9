"""The commands about costs: their output, their comparisons, and their errors."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentobs.cli import main
from tests.shared_stores import shared_store
from tests.store.recordings import (
    MODEL,
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)
from tests.store.test_money import call, history, read

DAY = 86_400 * SECOND


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Shell = Callable[..., Ended]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with calls on two days, of three models (one of them unknown), and with one lower bound."""
    home = a_home(tmp_path_factory.mktemp("cost"))
    record(
        home,
        [
            start(1, "refund-loop"),
            attempt(1, 1, cache_creation_input_tokens=1000),
            attempt(1, 2, cache_read_input_tokens=1000),
            end(1),
        ],
    )
    write_facts(
        home,
        [
            usage_row(
                11, session_id=session_id(2), at_ns=T0 + DAY, model="claude-opus-5-5-20260901"
            ),
            usage_row(12, session_id=session_id(2), at_ns=T0 + DAY, model="nobody"),
            usage_row(13, session_id=session_id(2), at_ns=T0 + DAY, certainty="lower_bound"),
        ],
    )
    with shared_store(home.path):
        yield home.path


@pytest.fixture
def shell(home: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*arguments: object, at: Path = home) -> Ended:
        code: object = 0
        capsys.readouterr()
        try:
            main(["--home", str(at), *map(str, arguments)])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ended(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.slow
def test_cost_by_model(shell: Shell) -> None:
    """The table lists tokens, cost and certainty; models without a price are named and never have a cost of 0."""
    result = shell("cost")
    cells = [[cell.strip() for cell in re.split(r"  +", line)] for line in lines(result.out)]
    assert cells == [
        ["model", "calls", "input", "output", "cache read", "cache write", "cost", "status", "lower bound",
         "estimated", "unpriced"],
        [MODEL, "3", "120", "≥ 50", "2,000", "1,055", "$0.0037", "at least", "1", "0", "0"],
        ["claude-opus-5-5", "1", "100", "10", "1,000", "55", "$0.0011", "exact", "0", "0", "0"],
        ["nobody", "1", "100", "10", "1,000", "55", "-", "unknown model", "0", "0", "1"],
    ]  # fmt: skip
    assert (
        "no price is known for nobody (1 call); these calls are not included in the totals"
        in result.err
    )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["model", "session", "day", "agent", "source", "model,day"])
def test_every_way_to_group_has_the_same_total(shell: Shell, by: str) -> None:
    """Every grouping adds up to the same total cost, in each output format."""
    rows = shell("cost", "--by", by, "--json").rows
    assert sum(row["calls"] for row in rows) == 5
    known = [Decimal(row["cost_usd"]) for row in rows if row["cost_usd"] is not None]
    models = shell("cost", "--json").rows
    assert sum(known) == sum(Decimal(row["cost_usd"]) for row in models if row["cost_usd"])
    assert sum(row["unpriced_calls"] for row in rows) == 1
    listed = list(csv.DictReader(io.StringIO(shell("cost", "--by", by, "--csv").out)))
    assert [row["cost_usd"] for row in listed] == [row["cost_usd"] or "" for row in rows]
    assert len(lines(shell("cost", "--by", by, "--detail").out)) == len(rows) + 1


@pytest.mark.parametrize("by", ["model", "session", "day", "agent", "source", "model,day"])
def test_cost_of_one_session(shell: Shell, by: str) -> None:
    """`--session` takes a name or an ID and excludes all other sessions, including calls without a price."""
    rows = shell("cost", "--by", by, "--session", "refund-loop", "--json")
    assert sum(row["calls"] for row in rows.rows) == 2
    assert sum(Decimal(row["cost_usd"]) for row in rows.rows) == Decimal("0.00314")
    assert "no price is known for nobody (" not in rows.err
    assert "no session" in shell("cost", "--by", by, "--session", "nobody").err


@pytest.mark.slow
def test_times_outside_of_the_storable_range(shell: Shell) -> None:
    """A time before or after the storable range includes all data on its side; a reversed range is rejected."""
    for option, value in (
        ("--since", "999999w"),
        ("--since", "0001-01-01"),
        ("--since", "1900-01-01"),
        ("--until", "9999-12-31"),
        ("--until", "2300-01-01"),
    ):
        assert sum(row["calls"] for row in shell("cost", option, value, "--json").rows) == 5
        assert shell("reprice", option, value, "--json").code == 0
        assert shell("cache", option, value, "--json").code == 0
    for option, value in (("--until", "999999w"), ("--since", "9999-12-31")):
        assert shell("cost", option, value, "--json").rows == []
    for command in ("cost", "reprice", "cache"):
        refused = shell(command, "--since", "2026-12-01", "--until", "2026-01-01")
        assert (refused.code, refused.out) == (1, "")
        assert "--since is after --until" in refused.err


@pytest.mark.slow
def test_amounts_have_no_exponents(shell: Shell) -> None:
    """Amounts in JSON and CSV have no exponents; several values in a cell are separated by commas."""
    for form in ("--json", "--csv"):
        for by in ("model", "session", "day", "model,day"):
            assert not re.search(r"\dE[-+]\d", shell("cost", "--by", by, form).out)
    listed = csv.DictReader(io.StringIO(shell("cost", "--csv").out))
    assert {row["models"] for row in listed} == {MODEL, "claude-opus-5-5-20260901", "nobody"}


def test_options_before_a_subcommand_of_cost(shell: Shell, report: Callable[..., Path]) -> None:
    """An option before `reconcile` that would have no effect is rejected."""
    file = report(page(*used()))
    for options in (("--since", "7d"), ("--json",), ("--by", "day")):
        refused = shell("cost", *options, "reconcile", file)
        assert (refused.code, refused.out) == (1, "")
        assert "have no effect before `reconcile`" in refused.err
        assert options[0] in refused.err


def test_cost_of_a_range(shell: Shell) -> None:
    """`--since` and `--until` accept days and times in UTC, and durations before now."""
    assert [row["day"] for row in shell("cost", "--by", "day", "--json").rows] == [
        "2026-09-22",
        "2026-09-21",
    ]
    one = shell("cost", "--by", "day", "--since", "2026-09-22", "--until", "2026-09-23", "--json")
    assert [row["calls"] for row in one.rows] == [3]
    at = shell(
        "cost", "--since", "2026-09-21T14:13:22Z", "--until", "2026-09-21T16:13:23+02:00", "--json"
    )
    assert [row["calls"] for row in at.rows] == [1]
    assert shell("cost", "--since", "1m", "--json").rows == []
    assert "day (UTC)" in shell("cost", "--by", "day").out


@pytest.mark.parametrize("value", ["yesterday", "7", "7y", "2026-13-01", "", "9" * 40 + "d"])
def test_invalid_times_are_rejected(shell: Shell, value: str) -> None:
    """The error gives examples of valid times."""
    result = shell("cost", "--since", value)
    assert result.code == 2
    assert "Use a duration before now (30m, 12h, 7d, 2w) or a local time" in result.err


@pytest.mark.parametrize("by", ["model", "day", "agent"])
def test_a_cost_figure(shell: Shell, by: str, tmp_path: Path) -> None:
    """The figure has bars and a list of inexact costs, in one HTML file; groupings without a figure are rejected."""
    file = tmp_path / "cost.html"
    assert shell("cost", "--by", by, "--figure", file).code == 0
    drawn = file.read_text()
    assert f"<h1>Cost by {by}</h1>" in drawn
    assert "1 call partly unknown: at least this amount" in drawn or by == "agent"
    assert "without a price, not in the total" in drawn
    refused = shell("cost", "--by", "source", "--figure", file)
    assert (refused.code, refused.out) == (1, "")


def test_reprice_prints_its_assumptions(shell: Shell) -> None:
    """The output lists stored cost, what-if cost and difference by model and in total.

    The assumptions and the price version follow.
    """
    result = shell(
        "reprice",
        "--model",
        "claude-opus-5-5",
        "--cache-lifetime",
        "1h",
        "--session",
        "refund-loop",
    )
    assert lines(result.out)[:3] == [
        "model              calls   stored  what-if  difference  not exact  what-if not exact",
        "claude-sonnet-5-5      2  $0.0031  $0.0091     $0.0059          0                  2",
        "all                    2  $0.0031  $0.0091     $0.0059          0                  2",
    ]
    assumptions = [line for line in lines(result.out) if line.startswith("assumed: ")]
    assert len(assumptions) == 2
    assert "price version 0.2.3" in result.out
    rows = shell("reprice", "--batch", "--json").rows
    assert rows[-1]["model"] is None
    assert Decimal(rows[-1]["difference_usd"]) == -Decimal(rows[-1]["stored_usd"]) / 2


def test_reprice_takes_sessions(shell: Shell) -> None:
    """SESSION arguments select the same calls as the option, and several of them are added up."""
    first = session_id(1)

    def repriced(*chosen: str) -> int:
        return int(shell("reprice", *chosen, "--json").rows[-1]["calls"])

    assert repriced("refund-loop") == repriced("--session", "refund-loop") == 2
    assert repriced(first, "refund-loop") == 2
    assert repriced() > 2
    assert shell("reprice", "nobody").code == 1


def test_reprice_with_a_price_file(shell: Shell, tmp_path: Path) -> None:
    """Prices in the file take precedence; an invalid file is rejected with the position of the error."""
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    rows = {row["model"]: row for row in shell("reprice", "--prices", file, "--json").rows}
    assert rows["nobody"]["stored_usd"] is None
    assert Decimal(rows["nobody"]["what_if_usd"]) > 0
    assert rows["nobody"]["difference_usd"] is None
    file.write_text("[[price]\n")
    refused = shell("reprice", "--prices", file)
    assert (refused.code, refused.out) == (1, "")
    assert str(file) in refused.err
    assert shell("reprice", "--prices", tmp_path / "none.toml").code == 1
    assert "no price is known for that model" in shell("reprice", "--model", "x" * 10_000).err


def test_reprice_with_prices_that_start_on_a_day(shell: Shell, tmp_path: Path) -> None:
    """A model whose price is valid from a certain day on is known; an empty model name is not."""
    file = tmp_path / "prices.toml"
    file.write_text(PRICES.replace('["nobody"]', '["new-one"]\nsince = 2026-09-01'))
    result = shell("reprice", "--model", "new-one", "--prices", file, "--json")
    assert result.code == 0
    assert Decimal(result.rows[-1]["what_if_usd"]) > 0
    assert "no price is known for that model" in shell("reprice", "--model", "").err


def test_reprice_with_a_file_and_prices_of_the_home(tmp_path: Path, shell: Shell) -> None:
    """Prices in the file take precedence over the prices of the home, which still apply to all other models."""
    own = a_home(tmp_path)
    (own.path / "prices.toml").write_text(PRICES)
    write_facts(own, [usage_row(1, model="nobody"), usage_row(2, model="other")])
    file = tmp_path / "more.toml"
    file.write_text(PRICES.replace('"nobody"', '"other"'))
    rows = {r["model"]: r for r in shell("reprice", "--prices", file, "--json", at=own.path).rows}
    assert rows["nobody"]["what_if_usd"] == rows["nobody"]["stored_usd"] is not None
    assert rows["other"]["what_if_usd"] == rows["nobody"]["what_if_usd"]
    file.write_text(PRICES.replace("input = 1", "input = 2"))
    rows = {r["model"]: r for r in shell("reprice", "--prices", file, "--json", at=own.path).rows}
    assert Decimal(rows["nobody"]["difference_usd"]) == Decimal("0.0001")


@pytest.mark.slow
def test_cache_of_all_sessions_and_of_one(shell: Shell) -> None:
    """`agentobs cache` prints the savings by caching and, for a single session, its lifetimes and misses."""
    listed = shell("cache")
    assert re.split(r"  +", lines(listed.out)[0]) == [
        "session id", "name", "calls", "hit ratio", "saved", "misses", "cache waste", "usual reason", "compactions",
        "$ compactions", "cheaper lifetime", "cost", "status",
    ]  # fmt: skip
    result = shell("cache", "refund-loop").out
    assert "hit ratio            49.5% of all input was read from the cache" in result
    assert f"{'cache waste':<20} nothing, no cache misses" in result
    [row] = shell("cache", "refund-loop", "--json").rows
    assert row["saved_usd"] is not None
    assert shell("cache", "nobody-knows").code == 1


@pytest.mark.slow
def test_a_miss_is_shown_with_its_changed_zones(shell: Shell, tmp_path: Path) -> None:
    """Each miss of a session is listed with its turn, all changed zones, and the turn that it is compared with."""
    own = a_home(tmp_path / "own")
    rude = {"system": "be rude", "tools": []}
    first = call(1, history(1), at=0, **read(0, 1000))
    second = call(2, history(3), at=60, head=rude, **read(0, 1100))
    record(own, [start(1), first, second, end(1)])
    result = lines(shell("cache", session_id(1), at=own.path).out)
    head, values = (re.split(r"  +", line.strip()) for line in result[-2:])
    row = dict(zip(head, values, strict=True))
    assert (row["lane"], row["turn"], row["reason"]) == ("main", "2", "tools_changed")
    assert (row["reason source"], row["zones changed"]) == ("request", "tools, system")
    assert (row["changed message"], row["compared turn"]) == ("-", "1")


# Reports of the provider


def bucket(day: int, *results: dict[str, Any]) -> dict[str, Any]:
    first = 21 + day
    return {
        "starting_at": f"2026-09-{first}T00:00:00Z",
        "ending_at": f"2026-09-{first + 1}T00:00:00Z",
        "results": list(results),
    }


def page(*buckets: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"data": list(buckets), "has_more": more, "next_page": "page_2" if more else None}


def counts(model: str | None, *tokens: int, **more: Any) -> dict[str, Any]:
    """Return a result of the usage report.

    The counts are uncached input, output, cache reads, and cache writes for 5 minutes and for 1 hour.
    """
    plain, output, read, five, hour = tokens
    return {
        "uncached_input_tokens": plain,
        "output_tokens": output,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        "server_tool_use": {"web_search_requests": 0},
        "model": model,
        "service_tier": None,
        "workspace_id": None,
        **more,
    }


def used(**more: Any) -> list[dict[str, Any]]:
    """Return the usage that the provider reports for the home, in the documented format and computed by hand."""
    return [
        bucket(0, counts(MODEL, 20, 40, 1000, 1000, 0, **more)),
        bucket(
            1,
            counts("claude-opus-5-5-20260901", 100, 10, 1000, 50, 5, **more),
            counts(MODEL, 100, 10, 1000, 50, 5, **more),
            counts("nobody", 100, 10, 1000, 50, 5, **more),
        ),
    ]


def billed() -> list[dict[str, Any]]:
    """Return the costs that the provider reports for this usage, in cents.

    They were computed by hand from the published prices (micro-dollars per token). Sonnet 5.5 (2, 10, 0.2, 2.5, 4): 40
    + 400 + 200 + 2500 = 3140, and 200 + 100 + 200 + 125 + 20 = 645. Opus 5.5 (4, 20, 0.2, 5, 8): 400 + 200 + 200 + 250
    + 40 = 1090.
    """

    def amount(cents: str, model: str) -> dict[str, Any]:
        return {"amount": cents, "currency": "USD", "cost_type": "tokens", "model": model}

    first = bucket(0, amount("0.314", MODEL))
    second = bucket(1, amount("0.109", "claude-opus-5-5-20260901"), amount("0.0645", MODEL))
    return [first, second]


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Path]:
    def write(value: Any, name: str = "report.json") -> Path:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_an_exact_match(shell: Shell, report: Callable[..., Path]) -> None:
    """A report with the recorded counts matches exactly; calls whose cost is not exact are listed first."""
    result = shell("cost", "reconcile", report(page(*used())))
    assert result.code == 0
    shown = lines(result.out)
    assert shown[0] == "usage report, 2026-09-21 00:00 to 2026-09-23 00:00 UTC, 4 results"
    assert shown[2] == "recorded calls whose cost is not exact: 2"
    assert "exact match: 19 of 19 figures are identical" in result.out


def test_pages_in_several_files(shell: Shell, report: Callable[..., Path]) -> None:
    """Pages may be in any order, or in a list in one file; a missing or repeated page is reported."""
    first, second = used()
    one = report(page(first, more=True), "1.json")
    two = report(page(second), "2.json")
    assert shell("cost", "reconcile", two, one).code == 0
    both = report([page(first, more=True), page(second)], "both.json")
    assert "exact match" in shell("cost", "reconcile", both).out
    alone = shell("cost", "reconcile", one)
    assert "note: the usage report has more pages (has_more)" in alone.out
    twice = shell("cost", "reconcile", one, two, one)
    assert twice.code == 1
    assert "the same page as in" in twice.err


def test_drift_in_counts_and_costs(shell: Shell, report: Callable[..., Path]) -> None:
    """Each figure that differs is listed by day and model with both values, and the exit code is 1."""
    buckets = used()
    buckets[0]["results"][0]["output_tokens"] += 7
    result = shell("cost", "reconcile", report(page(*buckets)), "--json")
    assert result.code == 1
    wrong = [row for row in result.rows if row["state"] != "match"]
    [row] = wrong
    assert (row["day"], row["model"], row["what"]) == ("2026-09-21", MODEL, "output_tokens")
    assert (row["ours"], row["theirs"], row["difference"]) == ("40", "47", "-7")
    money = billed()
    money[1]["results"][0]["amount"] = "1.5"
    shown = shell("cost", "reconcile", report(page(*money)))
    assert shown.code == 1
    assert "Different in the report and the recording:" in shown.out
    assert "$0.0150" in shown.out


def test_amounts_in_cents_and_their_rounding(shell: Shell, report: Callable[..., Path]) -> None:
    """A rounded amount matches within half of its last digit or 1% of the amount, whichever is smaller.

    The output contains this tolerance.
    """
    exact = shell("cost", "reconcile", report(page(*billed())), "--json")
    assert {row["state"] for row in exact.rows if row["model"] != "nobody"} == {"match"}
    assert [row["state"] for row in exact.rows if row["model"] == "nobody"] == ["only_here"]
    rounded = billed()
    rounded[0]["results"][0]["amount"] = "0.31"
    rounded[1]["results"][1]["amount"] = "0.064"
    found = shell("cost", "reconcile", report(page(*rounded)), "--json").rows
    result = {(row["day"], row["model"]): (row["state"], row["tolerance"]) for row in found}
    assert result["2026-09-21", MODEL] == ("differs", "0.000031")  # at most 1% of 0.31 cents
    assert result["2026-09-22", MODEL] == ("rounding", "0.000005")


@pytest.mark.parametrize("amount", ["0", "1", "0.5", "1E+5", "0.3"])
def test_rounding_does_not_hide_drift(
    shell: Shell, report: Callable[..., Path], amount: str
) -> None:
    """Drift is reported even if amounts are coarse or zero, or if there are many of these rows."""
    coarse = billed()
    coarse[0]["results"][0]["amount"] = amount
    coarse[0]["results"] += [{**coarse[0]["results"][0], "amount": "0"}] * 400
    rows = shell("cost", "reconcile", report(page(*coarse)), "--json").rows
    assert [row["state"] for row in rows if row["day"] == "2026-09-21"] == ["differs"]


def test_figures_on_one_side_only(shell: Shell, report: Callable[..., Path]) -> None:
    """A day, a model or a kind of cost that exists on only one side is listed separately."""
    buckets = used()
    buckets[1]["results"] = []
    other = {**buckets[0]["results"][0], "model": "claude-haiku-5-5"}
    buckets[0]["results"].append(other)
    result = shell("cost", "reconcile", report(page(*buckets)))
    assert result.code == 1
    only_report, only_here = result.out.split("Only in the recording:")
    assert "Only in the report:" in only_report
    assert "claude-haiku-5-5" in only_report
    assert "2026-09-22" in only_here
    money = billed()
    money[0]["results"].append(
        {"amount": "12", "currency": "USD", "cost_type": "code_execution", "model": None}
    )
    rows = shell("cost", "reconcile", report(page(*money)), "--json").rows
    lacking = [row for row in rows if row["state"] == "only_in_report"]
    assert [(row["what"], row["theirs"]) for row in lacking] == [("code_execution_usd", "0.12")]


def test_reports_by_day_and_by_hour(shell: Shell, report: Callable[..., Path]) -> None:
    """A report that is not grouped by model is compared by day; hourly buckets are added up to days."""
    whole = used()
    for each in whole:
        each["results"] = [{**result, "model": None} for result in each["results"]]
    reported = shell("cost", "reconcile", report(page(*whole)))
    assert reported.code == 0
    assert "not grouped by model" in reported.out
    hours = used()
    for each in hours:
        each["starting_at"] = each["starting_at"].replace("T00", "T14")
        each["ending_at"] = each["starting_at"].replace("T14", "T15")
    assert shell("cost", "reconcile", report(page(*hours))).code == 0


def test_a_report_about_several_workspaces(shell: Shell, report: Callable[..., Path]) -> None:
    """A report about several workspaces fails unless one of them is selected with `--workspace`."""
    buckets = used()
    foreign = [{**result, "workspace_id": "wrkspc_2"} for result in buckets[0]["results"]]
    buckets[0]["results"] += foreign
    both = shell("cost", "reconcile", report(page(*buckets)))
    assert both.code == 1
    assert "covers 2 workspaces (default, wrkspc_2): choose with --workspace" in both.out
    assert shell("cost", "reconcile", report(page(*buckets)), "--workspace", "default").code == 0


@pytest.mark.crash
def test_a_report_of_100_000_results(shell: Shell, report: Callable[..., Path]) -> None:
    """Large reports by key and minute are added up in bounded time."""
    [first, second] = used()
    nothing = {**first["results"][0], "output_tokens": 0, "uncached_input_tokens": 0,
               "cache_read_input_tokens": 0, "cache_creation": None}  # fmt: skip
    first["results"] += [nothing] * 100_000
    result = shell("cost", "reconcile", report(page(first, second)))
    assert result.code == 0
    assert "100,004 results" in result.out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "an empty list"),
        ("3", "not a page of a report"),
        ('{"sessions": []}', "not a page of a report"),
        ('{"data": [], "has_more": false}', "the report has no results"),
        ('{"data": [7]}', "data[0]: not a bucket"),
        ('{"data": [{"results": []}]}', "data[0].starting_at: not a time"),
        ('{"type": "error", "error": {"type": "authentication_error"}}', "an error of the provider"),
        (json.dumps(page(bucket(0, {"x": 1}))), "data[0].results[0]: neither"),
        (json.dumps(page(bucket(0, {"uncached_input_tokens": 1, "cache_creation": None}))), ".output_tokens: missing"),
        (json.dumps(page(bucket(0, {"uncached_input_tokens": -1}))), "uncached_input_tokens: not a count: -1"),
        (json.dumps(page(bucket(0, {"uncached_input_tokens": 1.5}))), "not a count: 1.5"),
        (json.dumps(page(bucket(0, {"uncached_input_tokens": True}))), "not a count: True"),
        (json.dumps(page(bucket(0, {"uncached_input_tokens": 10**30}))), "not a count"),
        (json.dumps(page(bucket(0, {"amount": "twelve"}))), "not an amount: 'twelve'"),
        (json.dumps(page(bucket(0, {"amount": "NaN"}))), "not an amount"),
        (json.dumps(page(bucket(0, {"amount": "1e400"}))), "not an amount"),
        ('{"data": [{"starting_at": NaN}]}', "not JSON: NaN"),
        (json.dumps(page(bucket(0, {"amount": "1", "currency": "EUR"}))), "the amounts are in EUR"),
        (json.dumps(page({**bucket(0), "ending_at": "2026-10-21T00:00:00Z"})), "longer than a day"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_report(
    shell: Shell, report: Callable[..., Path], text: str, expected: str
) -> None:
    """A file that is not a report gives a one-line error: the file, the position, and what was expected."""
    path = report(text)
    result = shell("cost", "reconcile", path)
    assert (result.code, result.out) == (1, "")
    assert expected in result.err
    assert result.err.startswith(f"error: {path}")
    assert result.err.count("\n") == 1


def test_a_missing_report(shell: Shell, tmp_path: Path) -> None:
    """A missing file, a directory, and a home without recordings each give a one-line error."""
    assert "cannot be read" in shell("cost", "reconcile", tmp_path / "none.json").err
    assert shell("cost", "reconcile", tmp_path).code == 1
    assert shell("cost", at=tmp_path).code == 1
    assert shell("reprice", at=tmp_path).code == 1
    assert shell("cache", at=tmp_path).code == 1


PRICES = """
[[price]]
models = ["nobody"]
input = 1
output = 2
cache_read = 0.1
cache_write_5m = 1.25
cache_write_1h = 2
source = "our contract"
checked = 2026-09-01
"""

"""Commands about costs: `cost`, `cost reconcile`, `reprice`, `cache`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import (
    Form,
    Rows,
    as_dicts,
    form_options,
    heading,
    open_store,
    print_rows,
    rows_of,
    session_of,
    with_lane_names,
    with_lane_names_of_sessions,
    with_texts,
)
from agentobs.cli.terminal.tables import print_facts
from agentobs.errors import UsageError
from agentobs.installation import install_extra
from agentobs.records.display import certain_money, money, share
from agentobs.records.words import COST_STATUSES

if TYPE_CHECKING:
    from agentobs.store.analysis.waste import Waste
    from agentobs.store.billing.price_scenarios import Repriced
    from agentobs.store.billing.reconciliation import Line, Reconciled
    from agentobs.store.port import Store

SHOWN = 20
"""The maximum number of inexact calls that are listed."""


def _range(command: Any) -> Any:
    """Add `--since` and `--until`."""
    command = click.option(
        "--until", type=WHEN, metavar="WHEN", help="Only calls sent before this time (local time)."
    )(command)
    return click.option(
        "--since",
        type=WHEN,
        metavar="WHEN",
        help="Only calls sent at or after this time: 7d, 12h, 2026-11-01, 2026-11-01T12:30 (local time; with Z, UTC).",
    )(command)


@click.group(invoke_without_command=True)
@click.option(
    "--by",
    type=click.Choice(
        [
            *("model", "session", "day", "agent", "source", "model,day"),
            *("branch", "commit", "repository"),
        ]
    ),
    default="model",
    show_default=True,
    help="Group costs by this dimension.",
)
@click.option(
    "--session",
    metavar="SESSION",
    help="Only this session: its ID, the start or end of it (4 characters or more), or its name.",
)
@_range
@click.option(
    "--detail", is_flag=True, help="Break down by token class, with cache writes shown separately."
)
@click.option(
    "--figure",
    type=click.Path(dir_okay=False),
    help="Also draw the costs as bars in an HTML file. Requires --by model, day or agent.",
)
@form_options
@click.pass_context
def cost(
    context: click.Context,
    by: str,
    session: str | None,
    since: int | None,
    until: int | None,
    detail: bool,
    figure: str | None,
    form: Form,
) -> None:
    """Show costs by model, session, day, agent, source, branch, commit or repository.

    Also shows the tokens of each class and the certainty of each cost. Days are UTC, as on bills.
    """
    if context.invoked_subcommand:
        _refuse_options_before(context)
        return

    _check_range(since, until)
    if figure and by not in _FIGURES:
        raise UsageError(f"--figure requires --by {', '.join(_FIGURES)}", where=f"--by {by}")
    with open_store(context) as store:
        chosen = {
            "session_id": session_of(store, session) if session else None,
            "since_ns": since,
            "until_ns": until,
        }
        query = f"cost_by_{by.replace(',', '_and_')}"
        rows = rows_of(store, query, **chosen)
        # A figure is a file that may be shared, so names appear in it as digests, as in the facts.
        facts = _facts_of(store, query, chosen) if figure else rows
        has_unpriced = any(row["unpriced_calls"] for row in as_dicts(rows))
        unpriced = _unpriced_models(store, chosen) if has_unpriced else ""
        unused = as_dicts(rows_of(store, "unused_summaries", **chosen))
        if by == "agent" and form == "table":
            rows = with_lane_names_of_sessions(rows, store)
    keys = _KEYS[by]
    print_rows(rows, (*keys, *(_PARTS if detail else _COST)), form)
    if unpriced:
        click.echo(
            f"no price is known for {unpriced}; these calls are not included in the totals",
            err=True,
        )
    if unused:
        click.echo(_waste(unused), err=True)
    if figure:
        _draw(f"cost_by_{by}", facts, figure)


def _waste(unused: Sequence[dict[str, Any]]) -> str:
    """Describe the cost of summaries that were not used, from the rows of `unused_summaries`."""
    known = [row["cost_usd"] for row in unused if row["cost_usd"] is not None]
    is_exact = len(known) == len(unused) and all(row["cost_status"] == "exact" for row in unused)
    cost = (
        certain_money(sum(known, Decimal(0)), "exact" if is_exact else "lower_bound")
        if known
        else "an unknown amount"
    )
    requests = sum(row["requests"] for row in unused)
    reasons = sorted({row["reason"] for row in unused if row["reason"] is not None})
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"{requests:,} requests for summaries that were not used{why} cost {cost}"


@cost.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--workspace",
    metavar="ID",
    help="Only results of this workspace; `default` for the default workspace.",
)
@form_options
@click.pass_context
def reconcile(
    context: click.Context, files: tuple[Path, ...], workspace: str | None, form: Form
) -> None:
    """Compare recorded usage and costs with the provider's report (JSON from the Admin API).

    FILES are the pages of the report. Exits with 1 if the report differs from the recording.
    """
    from agentobs.store.billing.provider_report import read_reports
    from agentobs.store.billing.reconciliation import reconcile as compare
    from agentobs.store.billing.reconciliation import span_ns

    reports = read_reports(list(files), workspace)
    with open_store(context) as store:
        with Spinner("comparing"):
            compared = [compare(store, report) for report in reports]
        inexact_calls = [
            rows_of(store, "costs_not_exact", limit=SHOWN, **span_ns(each.report))
            for each in compared
        ]
    if form == "table":
        for each, inexact in zip(compared, inexact_calls, strict=True):
            _print_reconciled(each, inexact)
    else:
        lines = [line for each in compared for line in each.lines]
        print_rows(_table(lines), (), form)
        for note in dict.fromkeys(note for each in compared for note in each.notes):
            click.echo(note, err=True)
    if not all(each.matches for each in compared):
        sys.exit(1)


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option(
    "--session",
    metavar="SESSION",
    help="Like SESSION: an ID, the start or end of it (4 characters or more), or a name.",
)
@_range
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help="A file of prices that take precedence over all others (see docs/prices.md).",
)
@click.option("--model", metavar="MODEL", help="Price all calls as if they had used this model.")
@click.option(
    "--cache-lifetime",
    type=click.Choice(["5m", "1h"]),
    help="Price all cache writes as if they had this lifetime.",
)
@click.option("--batch", is_flag=True, help="Price all calls as if they had used the batch API.")
@click.option("--fast", is_flag=True, help="Price all calls as if they had used fast mode.")
@form_options
@click.pass_context
def reprice(
    context: click.Context,
    /,
    sessions: tuple[str, ...],
    session: str | None,
    since: int | None,
    until: int | None,
    prices: Path | None,
    form: Form,
    **changes: Any,
) -> None:
    """Recompute the cost of stored calls with different prices. Stored data does not change.

    Shows the stored cost, the recomputed cost, and the difference. SESSION is the ID of a session, the start or end of
    the ID (4 characters or more), or its name. Default: all sessions.
    """
    from agentobs.ledger import Context, book_of
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.billing.price_scenarios import LayeredPriceBook, WhatIf, assumptions
    from agentobs.store.billing.price_scenarios import reprice as recompute

    _check_range(since, until)
    home = existing_home(home_option(context))
    book = book_of(home.path)
    if prices:
        book = LayeredPriceBook(book, _read(prices), str(prices))
    book.overlays()
    model = changes["model"]
    if model is not None and all(unit.rates is None for unit in book.resolve(Context(model))):
        raise UsageError(
            "no price is known for that model",
            where=f"--model {model[:80]}",
            todo="Use another model, or add a price for it with --prices FILE",
        )
    with open_store(context) as store:
        named = (*sessions, *([session] if session else ()))
        session_ids = tuple(dict.fromkeys(session_of(store, each) for each in named))
        what_if = WhatIf(session_ids, since, until, **changes)
        with Spinner("recomputing costs"):
            repriced = recompute(store, what_if, book)
        _, names = with_texts(([], [(each.model,) for each in repriced]))
        repriced = [
            dataclasses.replace(each, model=model)
            for each, (model,) in zip(repriced, names, strict=True)
        ]
    if form == "table":
        _print_repriced(repriced, [*assumptions(what_if), f"price version {book.version}"])
    else:
        print_rows(_table(repriced), (), form)
        for assumption in assumptions(what_if):
            click.echo(f"assumed: {assumption}", err=True)


@click.command()
@click.argument("session", required=False)
@_range
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of rows.",
)
@form_options
@click.pass_context
def cache(
    context: click.Context,
    session: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    form: Form,
) -> None:
    """Show what caching saved, what cache misses cost and why, and which lifetime is cheaper.

    Without SESSION, shows all sessions, most expensive first. With SESSION, also shows each of its cache misses,
    and the first request after each compaction. That request is not a cache miss.
    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    from agentobs.store.analysis.waste import session_waste, stored_rows

    _check_range(since, until)
    with open_store(context) as store:
        session_id = session_of(store, session) if session else None
        chosen = {"session_id": session_id, "limit": limit}
        rows = rows_of(store, "cache_by_session", since_ns=since, until_ns=until, **chosen)
        if session_id is not None and form == "table":
            losses = rows_of(store, "internal/cache_losses", **chosen)
            losses = with_lane_names(losses, store, session_id)
            rows_about = stored_rows(store, session_id)
            facts = _cache_waste(session_waste(rows_about), rows_about("cost_by_session"))
    if session_id is None or form != "table":
        print_rows(rows, _CACHE, form)
        return
    _print_cache(as_dicts(rows), facts)
    if losses[1]:
        click.echo()
        print_rows(losses, _LOSSES, "table")


_KEYS = {
    "model": ("model",),
    "session": ("session_id", "name"),
    "day": ("day",),
    "agent": ("session_id", "name", "lane"),
    "source": ("source",),
    "model,day": ("model", "day"),
    "branch": ("repository", "branch"),
    "commit": ("repository", "branch", "commit"),
    "repository": ("repository",),
}
_FIGURES = ("model", "day", "agent")
_CLASSES = ("calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_CERTAINTY = ("cost_usd", "cost_status", "lower_bound_calls", "estimated_calls", "unpriced_calls")
_COST = (*_CLASSES, *_CERTAINTY)
_PARTS = (
    "input_tokens", "input_usd", "output_tokens", "output_usd", "cache_read_tokens",
    "cache_read_usd", "cache_write_5m_tokens", "cache_write_5m_usd", "cache_write_1h_tokens",
    "cache_write_1h_usd", "server_tools_usd", "cost_usd", "cost_status",
)  # fmt: skip
_CACHE = (
    "session_id", "name", "calls", "hit_ratio", "saved_usd", "misses", "wasted_usd", "usual_reason",
    "compactions", "compaction_usd", "better", "cost_usd", "cost_status",
)  # fmt: skip
_LOSSES = (
    "at_ns", "lane", "turn", "reason", "extra_usd", "missed_tokens", "gap_ns", "model", "reason_source",
    "zones_changed", "changed_message", "compared_turn",
)  # fmt: skip
_NOT_EXACT = ("attempt_id", "session_id", "at_ns", "model", "cost_status", "cost_usd")
_REPRICED = (
    "model", "calls", "stored_usd", "what_if_usd", "difference_usd", "stored_not_exact_calls",
    "what_if_not_exact_calls",
)  # fmt: skip
"""The columns that each command shows; its query may return more."""


def _check_range(since: int | None, until: int | None) -> None:
    if since is not None and until is not None and since > until:
        raise UsageError("--since is after --until", where="--since", todo="Swap the two")


def _refuse_options_before(context: click.Context) -> None:
    """Refuse options of `cost` before a subcommand, because they would have no effect there."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                (
                    f"options of `cost` have no effect before `{context.invoked_subcommand}`; put them "
                    "after it"
                ),
                where=f"--{context.params[name] if name == 'form' else name}",
                todo=(
                    f"`agentobs cost {context.invoked_subcommand} --help` lists the options that it "
                    "accepts"
                ),
            )


def _facts_of(store: Store, query: str, chosen: dict[str, Any]) -> Rows:
    """Return the rows of a query as they are stored: names and reasons remain digests."""
    table = store.rows(query, **chosen)
    return table.columns, table.rows


def _unpriced_models(store: Store, chosen: dict[str, Any]) -> str:
    """Return the models without a price, with the number of their calls."""
    _, rows = rows_of(store, "unpriced_models", **chosen)
    return ", ".join(
        f"{model or 'an unnamed model'} ({calls:,} {'call' if calls == 1 else 'calls'})"
        for model, calls in rows
    )


def _print_reconciled(compared: Reconciled, inexact_calls: Rows) -> None:
    report = compared.report
    click.echo(
        f"{report.kind} report, {report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC, "
        f"{report.rows:,} results"
    )
    listed = as_dicts(inexact_calls)
    if listed:
        count = listed[0]["all_calls"]
        click.echo(f"\nrecorded calls whose cost is not exact: {count:,}")
        print_rows(inexact_calls, _NOT_EXACT, "table")
        if count > len(listed):
            click.echo(f"... and {count - len(listed):,} more")
    for state, title in _STATES.items():
        lines = [line for line in compared.lines if line.state == state]
        if lines:
            click.echo(f"\n{title}:")
            print_rows(_table(_readable(line) for line in lines), _LINE, "table")
    click.echo()
    click.echo(_verdict(compared))
    for note in compared.notes:
        click.echo(f"note: {note}")


_STATES = {
    "differs": "Different in the report and the recording",
    "only_in_report": "Only in the report",
    "only_here": "Only in the recording",
}
_LINE = (
    "day", "model", "service_tier", "what", "ours", "theirs", "difference", "tolerance", "not_exact_calls",
)  # fmt: skip


def _readable(line: Line) -> Any:
    """Return a line with amounts and counts in readable form."""
    shown = {
        name: money(value) if line.what.endswith("_usd") or value is None else int(value)
        for name, value in (
            ("ours", line.ours),
            ("theirs", line.theirs),
            ("difference", line.difference),
            ("tolerance", line.tolerance),
        )
    }
    return {**dataclasses.asdict(line), **shown}


def _verdict(compared: Reconciled) -> str:
    lines = compared.lines
    if not lines:
        return "nothing to compare: the report and the recording are both empty"
    identical = sum(line.state == "match" for line in lines)
    rounded_lines = [line for line in lines if line.state == "rounding"]
    rounded = len(rounded_lines)
    largest = max(
        (abs(line.difference or Decimal(0)) for line in rounded_lines), default=Decimal(0)
    )
    within = (
        f", {rounded} more within the rounding of the report (at most ${largest:f} apart)"
        if rounded_lines
        else ""
    )
    if compared.matches:
        kind = "exact match" if not rounded else "match"
        return f"{kind}: {identical} of {len(lines)} figures are identical{within}"
    usd_lines = [line for line in lines if line.what.endswith("_usd")]
    if not usd_lines:
        return f"{len(lines) - identical - rounded} of {len(lines)} figures differ"
    ours = sum((line.ours or Decimal(0) for line in usd_lines), Decimal(0))
    theirs = sum((line.theirs or Decimal(0) for line in usd_lines), Decimal(0))
    share = f" ({(ours - theirs) / theirs:+.2%})" if theirs else ""
    return (
        f"recorded {money(ours)}, report {money(theirs)}, difference {money(ours - theirs)}{share}"
    )


def _print_repriced(repriced: Sequence[Repriced], assumptions: Sequence[str]) -> None:
    columns, values = _table(repriced)
    values = [(row[0] or "all", *row[1:]) for row in values]
    print_rows((columns, values), _REPRICED, "table")
    for text in assumptions:
        click.echo(f"assumed: {text}" if text != assumptions[-1] else text)
    if any(row.stored_unpriced_calls or row.what_if_unpriced_calls for row in repriced):
        click.echo(
            "the difference includes only calls that have both a stored and a recomputed price"
        )


def _cache_waste(
    waste: Sequence[Waste], costs: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return what was paid again for cached tokens, one kind per line with its label. `show` has all kinds of waste.

    Args:
        waste: the kinds of waste of the session.
        costs: its row of `cost_by_session`.
    """
    from agentobs.store.analysis.waste import waste_facts, waste_total, with_share

    chosen = [each for each in waste if each.kind in ("misses", "compactions", "prefixes")]
    found = with_share(chosen, costs)
    is_wasted = any(each.is_counted for each in found)
    nothing = [] if is_wasted else [("wasted", "nothing, no cache misses")]
    facts = [*nothing, *waste_facts(found, waste_total(found, costs))]
    return [(heading("wasted_usd") if name == "wasted" else name, words) for name, words in facts]


def _print_cache(rows: Sequence[dict[str, Any]], waste: Sequence[tuple[str, str]]) -> None:
    for row in rows:
        ratio = row["hit_ratio"]
        name = f" ({row['name']})" if row["name"] else ""
        entries = [
            ("session", f"{row['session_id']}{name}"),
            ("hit ratio", "-" if ratio is None else f"{share(ratio, digits=1)} of all input was read from the cache"),
            ("saved", f"{money(row['saved_usd']) or '-'}: reads saved {money(row['read_saved_usd']) or '-'}, "
             f"writes cost {money(row['write_premium_usd']) or '-'} more than uncached input"),
            *waste,
            ("lifetimes", _lifetimes(row)),
            ("gaps", f"{row['gaps_over_5m'] or 0} over 5 minutes, {row['gaps_over_1h'] or 0} over 1 hour"),
            ("cost", f"{money(row['cost_usd'], row['cost_status']) or '-'}, {COST_STATUSES[row['cost_status']]}"),
        ]  # fmt: skip
        print_facts(entries)


def _lifetimes(row: Mapping[str, Any]) -> str:
    """Return what the cache cost, and would have cost with each lifetime, in words."""
    if row["better"] is None:
        return "nothing was cached"
    better = {"5m": "5 minutes is cheaper", "1h": "1 hour is cheaper"}.get(
        row["better"], "both cost the same"
    )
    return (
        f"the cache cost {money(row['cache_usd'])}; estimated with a lifetime of 5 minutes "
        f"{money(row['cache_5m_usd'])}, of 1 hour {money(row['cache_1h_usd'])}: {better}"
    )


def _table(values: Any) -> Rows:
    """Return dataclass instances or dicts as rows."""
    rows = [each if isinstance(each, dict) else dataclasses.asdict(each) for each in values]
    columns = list(rows[0]) if rows else []
    return columns, [tuple(row.values()) for row in rows]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the file: {error.strerror}", where=str(path)) from error


def _draw(name: str, rows: Rows, file: str) -> None:
    try:
        from dashboards import figures
    except ImportError as error:
        raise UsageError(
            "figures need plotly", where="--figure", todo=install_extra("dashboards")
        ) from error
    figure = getattr(figures, name)(as_dicts(rows))
    title = name.replace("_", " ").capitalize()
    # Without this, plotly would read the text between two dollar signs as a formula.
    config = {"displaylogo": False, "typesetMath": False}
    html = figure.to_html(full_html=False, include_plotlyjs=True, config=config)
    try:
        Path(file).write_text(_PAGE.format(title=title, figure=html), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the file: {error.strerror}", where=file) from error
    click.echo(f"wrote {file}", err=True)


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>:root {{ color-scheme: only light; }} body {{ margin: 1.5rem; font-family: system-ui, sans-serif; }}</style>
</head>
<body>
<h1>{title}</h1>
{figure}
</body>
</html>
"""
"""A page that needs no network. It is always light, because the figure has the colors of the light theme."""

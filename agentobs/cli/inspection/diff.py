"""The command that compares two sessions, recorded or frozen: step by step, with money, tokens and time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.query_output import (
    as_dicts,
    facts_of,
    in_words,
    open_store,
    rows_of,
    session_of,
)
from agentobs.cli.terminal.report_file import check_report, now, write
from agentobs.cli.terminal.tables import show_table
from agentobs.errors import UsageError
from agentobs.records.display import money, printable, seconds, text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from agentobs.recording.journal.home import Home
    from agentobs.records.exchanges import Exchange
    from replay.divergence.session_diff import Comparison, Pair, Part
    from replay.fixture.format import Fixture

AROUND = 1
"""How many equal steps are shown before and behind those that differ."""


@click.command(help="Compare two sessions step by step, with money, tokens and time of each.")
@click.argument("a")
@click.argument("b")
@click.option(
    "--content", is_flag=True, help="Compare what was said, too. It may hold what users typed."
)
@click.option("--all", "everything", is_flag=True, help="Show equal steps, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the comparison as one HTML file, too; with what was said if --content says so.",
)
@click.option("--light", is_flag=True, help="Make that file small, without any script.")
@click.option("--force", is_flag=True, help="Replace the file of --report where it exists.")
@click.pass_context
def diff(
    context: click.Context,
    a: str,
    b: str,
    content: bool,
    everything: bool,
    as_json: bool,
    report: Path | None,
    light: bool,
    force: bool,
) -> None:
    """Compare A with B: each a session's id, an end of it, its name; or a fixture, by its folder or file."""
    from replay.divergence.session_diff import compared

    if report is not None:
        check_report(report, force)
    elif light:
        raise UsageError("goes with --report", where="--light", todo="Say --report FILE")
    one, other = _Side(context, a, content), _Side(context, b, content)
    found = compared(one.parts, other.parts)
    if report is not None:
        _write_report(report, one, other, found, light=light, force=force)
    if as_json:
        click.echo(found.json(one.about, other.about))
        return
    _show_totals(one, other, found)
    if not found.changes:
        click.echo(f"\nall {len(found.pairs)} steps are alike")
    else:
        click.echo()
        _show_steps(found, everything)
    if not found.has_texts:
        click.echo("\nwhat was asked and said was not compared: --content compares it")


def comparison_of(home: Home, a: str, b: str) -> dict[str, Any]:
    """Return how two sessions compare, as `--json` prints it, by facts alone.

    Args:
        home: where both were recorded.
        a: the id of the one.
        b: the id of the other.
    """
    from agentobs.store.duckdb.connection import connect
    from agentobs.store.label_texts import Texts
    from replay.divergence.session_diff import compared

    with connect(home) as connection:
        (about, parts), (other, others) = (
            _facts_of(connection, session_id) for session_id in (a, b)
        )
        about, other = Texts(connection, home).shown_dicts([about, other])
    found: dict[str, Any] = json.loads(compared(parts, others).json(about, other))
    return found


def _write_report(
    report: Path, one: _Side, other: _Side, found: Comparison, *, light: bool, force: bool
) -> None:
    """Write the comparison as one HTML file."""
    from dashboards.report.path_reports import comparison_report
    from replay.comparison.alignment import aligned

    lines = [
        [line for each in pair.differences for line in (each.path, *aligned(each, 96))]
        for pair in found.pairs
    ]
    sides = (one.about, other.about) if found.has_texts else (one.facts, other.facts)
    told = json.loads(found.json(*sides))
    text = comparison_report(told, lines, made_ns=now(), light=light)
    write(report, text, force=force, content=found.has_texts)


_Before = dict[str, tuple[Any, list[Any]]]
"""The last request of each lane, and what it was answered."""


class _Side:
    """One side of the comparison: its description, as written and as stored in the facts, and its steps."""

    def __init__(self, context: click.Context, named: str, content: bool) -> None:
        path = Path(named)
        self.parts: list[Part]
        if path.exists() and (path.is_dir() or path.suffix == ".jsonl"):
            from replay.fixture.format import load

            fixture = load(path)
            self.about: dict[str, Any] = {
                "name": fixture.name,
                "fixture": str(path),
                "outcome": fixture.header.get("outcome"),
            }
            self.facts = self.about
            self.parts = list(_of_fixture(fixture, content))
        else:
            self.facts, self.about, self.parts = _of_session(context, named, content)

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        which = self.about.get("session_id") or self.about.get("fixture")
        return f"{self.about['name']} {which}"


def _of_session(
    context: click.Context, named: str, content: bool
) -> tuple[dict[str, Any], dict[str, Any], list[Part]]:
    with open_store(context) as connection:
        session_id = session_of(context, connection, named)
        texts = _texts(context, session_id) if content else None
        facts, parts = _facts_of(connection, session_id, texts)
        [about] = as_dicts(in_words((list(facts), [tuple(facts.values())])))
        return facts, about, parts


def _facts_of(
    connection: DuckDBPyConnection, session_id: str, texts: _Texts | None = None
) -> tuple[dict[str, Any], list[Part]]:
    """Return what a session is, and its steps, with what was said in them where that is given."""
    from agentobs.store.duckdb.connection import select
    from replay.divergence.session_diff import Part, plain_lanes

    one = select(
        connection,
        "SELECT name, status, continues_session_id, forked_turn FROM sessions WHERE session_id = ?",
        [session_id],
    )
    [(name, status, parent, forked_turn)] = facts_of(one)[1]
    rows = as_dicts(rows_of(connection, "session_steps", session_id=session_id))
    calls = {row["id"]: row["name"] for row in rows if row["kind"] == "tool_call"}
    lanes = plain_lanes(list(dict.fromkeys(row["lane"] for row in rows)), calls)
    fields = Part.__dataclass_fields__
    parts = [
        Part(
            **{k: v for k, v in row.items() if k in fields and k != "lane"},
            lane=lanes[row["lane"]],
            texts=None if texts is None else texts.get((row["kind"], row["id"])),
        )
        for row in rows
    ]
    about = {"name": str(name), "session_id": session_id, "outcome": str(status)}
    if forked_turn is not None:
        about |= {"forked_from": parent, "forked_turn": forked_turn}
    return about, parts


_Texts = dict[tuple[str, str], dict[str, Any]]
"""What was said, by kind and id of the step."""


def _texts(context: click.Context, session_id: str) -> _Texts:
    """Return what was said in a session, by kind and id of the step.

    Raises:
        RecordingError: its content was not recorded, or is gone.
    """
    from agentobs.cli.terminal.recordings import recorded

    session = recorded(home_option(context), session_id)
    before: _Before = {}
    said = (_said(each, before) for each in session.exchanges)
    return {step: texts for step, texts in said if texts}


def _said(exchange: Exchange, before: _Before) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return what was said in a step; `before` holds the last request of each lane, and is kept up."""
    from agentobs.provider.messages import assemble
    from agentobs.records.exchanges import ModelExchange, ToolExchange

    if isinstance(exchange, ModelExchange):
        message = assemble(exchange.answer.headers, exchange.answer.body)
        said = _texts_of(before, exchange.place.lane, exchange.question.body, message)
        return ("request", exchange.attempt_id), said
    if isinstance(exchange, ToolExchange):
        call = exchange.question
        said = {"input": call.input, "result": exchange.answer.content}
        return ("tool_call", call.tool_use_id), said
    return ("", ""), {}


def _texts_of(before: _Before, lane: str, body: bytes, message: dict[str, Any]) -> dict[str, Any]:
    """Return what a request asks that the one before it in its lane did not, and what it was answered."""
    from replay.divergence.session_diff import answer_of, asked_since
    from replay.fixture.body_parts import value_of

    old, said = before.get(lane, (None, []))
    asked, answer = value_of(body), answer_of(message)
    before[lane] = asked, answer
    return {"asked": asked_since(old, asked, said), "answer": answer}


def _of_fixture(fixture: Fixture, content: bool) -> Iterator[Part]:
    """Yield the steps of a fixture: what its lines tell, priced by the prices of today."""
    from agentobs.provider.messages import assemble, text_of, tool_uses
    from agentobs.records.canonical_json import size
    from replay.divergence.session_diff import Part, plain_lanes

    answers = [(ask, assemble(ask.answer.headers, ask.answer.body)) for ask in fixture.asks]
    calls = {str(c.get("id")): str(c.get("name")) for _, m in answers for c in tool_uses(m)}
    lanes = plain_lanes(fixture.lanes, calls)
    before: _Before = {}
    ran = {(tool.lane, tool.question.tool_use_id): tool.answer for tool in fixture.tools}
    for ask, message in answers:
        status = ask.answer.status
        made = tool_uses(message)
        stop, model = message.get("stop_reason"), message.get("model")
        yield Part(
            "request",
            lanes[ask.lane],
            ask.turn,
            ask.path.partition("?")[0],
            model=model if isinstance(model, str) else None,
            outcome="ok" if status == 200 and "error" not in message else f"{status}",
            stop_reason=stop if isinstance(stop, str) else None,
            calls=" ".join(str(call.get("name")) for call in made) or None,
            duration_ns=int(ask.pieces[-1][1]) * 1_000_000 if ask.pieces else None,
            texts=_texts_of(before, ask.lane, fixture.body(ask.number), message)
            if content
            else None,
            **_spent(model, message.get("usage")),
        )
        for call in made:
            answer = ran.get((ask.lane, str(call.get("id"))))
            result = answer.content if answer else _heard(fixture, str(call.get("id")))
            told = {"input": call.get("input"), "result": result}
            yield Part(
                "tool_call",
                lanes[ask.lane],
                ask.turn,
                str(call.get("name")),
                outcome=answer.outcome if answer else None,
                input_bytes=size(call.get("input")),
                result_bytes=None if result is None else len(text_of(result).encode()),
                texts=told if content else None,
            )


def _heard(fixture: Fixture, tool_use_id: str) -> Any:
    """Return the result that the agent itself gave to a call, from the request that carries it; or None."""
    from agentobs.provider.messages import tool_results

    for ask in fixture.asks:
        for shape in (ask.shape.get("body"), ask.shape):
            listed = shape.get("messages") or shape.get("add") if isinstance(shape, dict) else None
            for message in listed if isinstance(listed, list) else []:
                for result in tool_results(message) if isinstance(message, dict) else []:
                    if result.get("tool_use_id") == tool_use_id:
                        return result.get("content")
    return None


def _spent(model: Any, usage: Any) -> dict[str, Any]:
    """Return the tokens of an answer, and what they cost today."""
    from agentobs import world
    from agentobs.ledger import cost_of
    from agentobs.records.usage import usage_rows

    if not (isinstance(model, str) and isinstance(usage, dict)):
        return {}
    rows = [row for row in usage_rows(model, usage, "exact") if row.billed]
    costs = [cost_of(row, world.now()) for row in rows]
    known = [each.usd for each in costs if each.usd is not None]
    return {
        "input_tokens": sum(row.input_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "cache_read_tokens": sum(row.cache_read_tokens for row in rows),
        "cache_write_tokens": sum(
            row.cache_write_5m_tokens + row.cache_write_1h_tokens for row in rows
        ),
        "cost_usd": sum(known, Decimal(0)) if len(known) == len(costs) else None,
        "cost_status": "exact" if all(each.status == "exact" for each in costs) else "estimated",
    }


_TOTALS = (
    ("requests", "requests"),
    ("tool calls", "tool_calls"),
    ("decisions", "decisions"),
    ("input tokens", "input_tokens"),
    ("output tokens", "output_tokens"),
    ("cache read", "cache_read_tokens"),
    ("cache write", "cache_write_tokens"),
    ("cost", "cost_usd"),
    ("time of all steps", "duration_ns"),
)


def _show_totals(one: _Side, other: _Side, found: Comparison) -> None:
    click.echo(f"A  {printable(one.title)}  {one.about['outcome']}")
    click.echo(f"B  {printable(other.title)}  {other.about['outcome']}")
    for letter, side in (("A", one), ("B", other)):
        if (turn := side.about.get("forked_turn")) is not None:
            parent = side.about["forked_from"] or "a fixture"
            click.echo(
                f"{letter} is a fork of {parent}: turns up to {turn} were replayed at no cost"
            )
    click.echo()
    rows = []
    for name, key in _TOTALS:
        a, b = getattr(found.a, key), getattr(found.b, key)
        if a or b:
            sure = [_SURE[side.cost_status] for side in (found.a, found.b)]
            rows.append(
                (name, _measure(key, a, sure[0]), _measure(key, b, sure[1]), _by(key, a, b, sure))
            )
    show_table(["", "A", "B", "B - A"], rows)


_SURE = {"exact": "", "lower_bound": "at least ", "estimated": "about "}


def _measure(key: str, value: Any, sure: str = "") -> str:
    if value is None:
        return "unknown" if key == "cost_usd" else ""
    if key == "cost_usd":
        return f"{sure}{money(value)}"
    return str(seconds(value)) if key == "duration_ns" else text(value)


def _by(key: str, a: Any, b: Any, sure: Sequence[str]) -> str:
    """Return how B differs from A; nothing where that cannot be told, as of money that is not exact."""
    if a is None or b is None:
        return ""
    if key == "cost_usd" and any(sure):
        return "cannot be told"
    if a == b:
        return ""
    sign = "+" if b > a else "-"
    return f"{sign}{_measure(key, abs(b - a))}"


_SIGNS = {"same": "=", "changed": "~", "removed": "-", "added": "+"}


def _show_steps(found: Comparison, everything: bool) -> None:
    """Print the steps side by side; equal ones that are far from any other as their number."""
    rows: list[tuple[str, ...]] = []
    skipped = 0
    for at, pair in enumerate(found.pairs):
        near = found.pairs[max(at - AROUND, 0) : at + AROUND + 1]
        if not everything and all(each.change == "same" for each in near):
            skipped += 1
            continue
        rows += [_alike(skipped)] if skipped else []
        skipped = 0
        rows += _rows(pair)
    rows += [_alike(skipped)] if skipped else []
    show_table(["", "lane", "turn", "step", "A", "B", "what differs"], rows)


def _alike(number: int) -> tuple[str, ...]:
    return "=", "", "", f"{number} step{'s' * (number != 1)} alike", "", "", ""


def _rows(pair: Pair) -> Iterator[tuple[str, ...]]:
    from replay.comparison.alignment import aligned

    part = pair.b or pair.a
    assert part is not None
    what = {"request": "asks", "tool_call": "calls", "decision": "decides on"}[part.kind]
    differs = "; ".join(_differing(pair, name) for name in pair.differs if name != "texts")
    turn = "" if part.turn is None else str(part.turn)
    step = f"{what} {part.name}"
    yield _SIGNS[pair.change], part.lane, turn, step, _took(pair.a), _took(pair.b), differs
    for each in pair.differences:
        yield "", "", "", f"  {each.path}", "", "", ""
        yield from (("", "", "", f"    {line}", "", "", "") for line in aligned(each, 96))


def _differing(pair: Pair, name: str) -> str:
    a, b = (getattr(part, name) for part in (pair.a, pair.b))
    plain = name.replace("_", " ")
    return f"{plain} {text(a)} -> {text(b)}"


def _took(part: Part | None) -> str:
    """Return what a step took, in a few words."""
    if part is None:
        return ""
    tokens = f"in {part.input_tokens:,} out {part.output_tokens:,}" if part.input_tokens else ""
    ended = part.outcome if part.outcome != "ok" else part.stop_reason
    sure = _SURE.get(part.cost_status or "exact", "")
    cost = None if part.cost_usd is None else f"{sure}{money(part.cost_usd)}"
    told = (ended, tokens, cost, seconds(part.duration_ns))
    return ", ".join(each for each in told if each)

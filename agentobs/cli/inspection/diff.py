"""The command that compares two sessions or fixtures step by step, with cost, tokens and time: `diff`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.padding import Padding
from rich.text import Text

from agentobs.cli.inspection.diff_head import change_lines, show_totals
from agentobs.cli.inspection.session_summary import own_tags
from agentobs.cli.inspection.step_digests import NotCompared, StepDigests, step_digests
from agentobs.cli.replay.fixture_requests import (
    failed_requests_of_fixture,
    turns_of_fixture,
)
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import open_store, session_of
from agentobs.cli.terminal.report_file import check_report, light_options, now, write
from agentobs.cli.terminal.tables import console, print_line, show_table
from agentobs.errors import UsageError
from agentobs.records.display import certain_money, in_both, seconds, text
from agentobs.records.outcome_difference import error_of
from agentobs.records.words import NO_IDENTICAL_STEP
from agentobs.store.analysis.failed_steps import FailedCalls, failed_calls, is_denied
from agentobs.store.analysis.first_changes import starts_of
from agentobs.store.analysis.lane_names import name_of_lane, names_in_both, names_of_rows
from agentobs.store.analysis.unfinished_turns import UnfinishedTurns, unfinished_turns

if TYPE_CHECKING:
    from agentobs.provider.dialect import Block, Message
    from agentobs.records.exchanges import Exchange
    from agentobs.store.label_texts import LabelTexts
    from agentobs.store.port import Store
    from replay.divergence.session_diff import Comparison, Pair, Part
    from replay.fixture.format import Fixture, RecordedRequest

AROUND = 1
"""The maximum number of identical steps that are shown before and after the steps that differ."""


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--content",
    is_flag=True,
    help="Also show the content that differs: prompts, responses, tool data. May show user input.",
)
@click.option("--all", "everything", is_flag=True, help="Also show identical steps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=(
        "Also write the comparison as one HTML file, which includes content if --content is given."
    ),
)
@light_options
@click.option("--force", is_flag=True, help="With --report: replace an existing file.")
@click.pass_context
def diff(
    context: click.Context,
    a: str,
    b: str,
    content: bool,
    everything: bool,
    as_json: bool,
    report: Path | None,
    light: bool | None,
    force: bool,
) -> None:
    """Compare two sessions step by step, with cost, tokens and time.

    A and B are sessions or fixtures. For a session, pass its ID, the start or end of the ID (4 characters or more), or
    its name. For a fixture, pass its folder or its file.
    """
    from replay.divergence.session_diff import compared

    if report is not None:
        check_report(report, force)
    elif light is not None:
        name = "--light" if light else "--interactive"
        raise UsageError(f"{name} requires --report", todo="Pass --report FILE")
    with Spinner("comparing"), _needed_store(context, (a, b)) as store:
        digests, gaps = _step_digests(store, (a, b))
        one, other = (
            _Side(store, named, content, digests[at] if digests else None)
            for at, named in enumerate((a, b))
        )
        found = compared(one.parts, other.parts)
    if report is not None:
        _write_report(report, one, other, found, light=light is not False, force=force)
    if as_json:
        click.echo(found.json(one.about, other.about))
        return
    if not found.has_identical_step:
        click.echo(f"{NO_IDENTICAL_STEP}\n")
    show_totals((one, other), found)
    click.echo()
    for line in change_lines((one, other), found):
        print_line(line)
    if not found.changes:
        click.echo(f"all {len(found.pairs)} steps are identical")
    else:
        _show_steps(found, everything)
    if not found.has_texts:
        click.echo(f"\n{_compared_content(digests is not None, gaps)}")


def _compared_content(has_digests: bool, gaps: Sequence[NotCompared]) -> str:
    """Return which content was compared without showing it, in a sentence."""
    if not has_digests or any(each.reason == "different_homes" for each in gaps):
        return "content was not compared; pass --content to compare it"
    if gaps:
        return (
            "prompts were compared by their digests; other content was not compared, because it "
            "is missing"
        )
    return "content was compared by its digests; pass --content to show the differences"


def comparison_of(store: Store, a: str, b: str) -> dict[str, Any]:
    """Return the comparison of two sessions, in the form that `--json` prints, without content.

    Steps also differ if their content does. For this, the content is read if it exists, but not returned. What the
    sessions were made with contains digests in place of texts.

    Args:
        store: the store of the home in which both sessions were recorded.
        a: the ID of the first session.
        b: the ID of the second session.
    """
    from agentobs.store.label_texts import LabelTexts
    from replay.divergence.session_diff import compared

    labels = LabelTexts(store)
    digests, gaps = step_digests(store, (a, b))
    (about_a, parts_a), (about_b, parts_b) = (
        _facts_of(_SessionRows.of(store, session_id), labels=labels, digests=each)
        for session_id, each in zip((a, b), digests, strict=True)
    )
    about_a, about_b = (
        {**restored, "setup": about["setup"]}
        for about, restored in zip(
            (about_a, about_b), labels.replace_in_dicts([about_a, about_b]), strict=True
        )
    )
    found: dict[str, Any] = json.loads(compared(parts_a, parts_b).json(about_a, about_b))
    return {**found, "not_compared": [each.json() for each in gaps]} if gaps else found


def _write_report(
    report: Path, one: _Side, other: _Side, found: Comparison, *, light: bool, force: bool
) -> None:
    """Write the comparison as one HTML file."""
    from dashboards.report.path_reports import comparison_report
    from replay.comparison.alignment import aligned
    from replay.divergence.session_diff import compared

    sides = one.about, other.about
    if not found.has_texts:  # the report can be shared, so digests in its steps are not replaced
        sides, found = (one.facts, other.facts), compared(one.stored_parts, other.stored_parts)
    lines = [
        [line for each in pair.differences for line in (each.path, *aligned(each, 96))]
        for pair in found.pairs
    ]
    facts = json.loads(found.json(*sides))
    text = comparison_report(facts, lines, made_ns=now(), light=light)
    write(report, text, force=force, content=found.has_texts)


_LastRequests = dict[str, tuple[Any, list[Any]]]
"""The last request of each lane, and its response."""


class _Side:
    """One side of the comparison: steps, and a description with names as texts (`about`) or as digests (`facts`)."""

    def __init__(
        self,
        store: Store | None,
        named: str,
        content: bool,
        digests: StepDigests | None,
    ) -> None:
        self.session_title = ""
        """The title of the session; empty if it has none."""
        self.parts: list[Part]
        self.stored_parts: list[Part]
        """The steps with digests instead of texts, as facts contain them."""
        if _is_fixture(named):
            from replay.fixture.format import load

            path = Path(named)
            fixture = load(path)
            results = list(_results_of(fixture))
            self.about: dict[str, Any] = {
                "name": fixture.name,
                "fixture": str(path),
                "outcome": fixture.header.get("outcome"),
                **_failed_calls(results),
                "setup": _setup_of_fixture(fixture),
            }
            self.starts: dict[tuple[str, str], int] = {}
            self.failed_calls = {each.tool_use_id for each in results if each.is_error}
            self.facts = self.about
            self.parts = self.stored_parts = list(_of_fixture(fixture, content))
            self.about["failed_requests"] = failed_requests_of_fixture(fixture, self.parts)
            self.about |= _turns(*turns_of_fixture(fixture, self.parts))
        else:
            from agentobs.store.analysis.session_search import SessionTexts
            from agentobs.store.label_texts import LabelTexts

            assert store is not None
            session_id = session_of(store, named)
            texts = _texts(store, session_id) if content else None
            labels = LabelTexts(store)
            rows = _SessionRows.of(store, session_id)
            self.about, self.parts = _facts_of(rows, texts, labels, digests)
            self.facts, self.stored_parts = _facts_of(rows, None, None, digests)
            [self.about] = labels.replace_in_dicts([self.about])
            self.starts = starts_of(labels.replace_in_dicts(rows.steps))
            calls = store.rows("internal/session_tool_calls", session_id=session_id).dicts()
            self.failed_calls = {
                row["tool_use_id"] for row in labels.replace_in_dicts(calls) if row["is_error"]
            }
            titles = SessionTexts(store, labels).titles([session_id])
            self.session_title = titles.get(session_id, "")

    @property
    def title(self) -> str:
        """The name and the ID or path of this side."""
        which = self.about.get("session_id") or self.about.get("fixture")
        return f"{self.about['name']} {which}"


def _is_fixture(named: str) -> bool:
    path = Path(named)
    return path.exists() and (path.is_dir() or path.suffix == ".jsonl")


@contextmanager
def _needed_store(context: click.Context, names: Sequence[str]) -> Iterator[Store | None]:
    """Connect to the store of the chosen home; yield None if both sides are fixtures."""
    if all(map(_is_fixture, names)):
        yield None
    else:
        with open_store(context) as store:
            yield store


def _step_digests(
    store: Store | None, names: Sequence[str]
) -> tuple[list[StepDigests] | None, list[NotCompared]]:
    """Return the digests of the content of two sessions, which also decide which steps are aligned, and what cannot be
    compared; None if a side is a fixture.
    """
    if store is None or any(map(_is_fixture, names)):
        return None, []
    return step_digests(store, [session_of(store, each) for each in names])


@dataclass(frozen=True, slots=True)
class _SessionRows:
    """The rows of a session from which its description and its steps are made."""

    session_id: str
    summary: dict[str, Any]
    steps: Sequence[dict[str, Any]]
    lanes: Sequence[dict[str, Any]]
    """The rows of `internal/lane_names`."""
    partial: Set[str]
    """The attempts whose output tokens are a lower bound."""
    failed: FailedCalls
    unfinished: UnfinishedTurns | None
    failure: Mapping[str, Any] | None
    """Its row of `failures`; None if it did not fail."""
    setup: Mapping[str, Any]
    """What it was made with, as stored."""

    @classmethod
    def of(cls, store: Store, session_id: str) -> _SessionRows:
        """Read the rows of a session."""
        [summary] = store.rows("internal/session_summary", session_id=session_id).dicts()
        listed = store.rows("session_steps", session_id=session_id).dicts()
        # A fixture has no steps of tools that the provider ran: they are part of its responses.
        steps = [row for row in listed if row["runs_on"] != "provider"]
        lanes = list(store.rows("internal/lane_names", session_ids=[session_id]).dicts())
        partial = store.rows("internal/partial_counts", session_id=session_id).rows
        failed = failed_calls(store, [session_id]).get(session_id, FailedCalls())
        cut = store.rows("internal/unfinished_turns", session_id=session_id).dicts()
        failure = store.rows("internal/failure", session_id=session_id).first()
        return cls(
            session_id,
            summary,
            steps,
            lanes,
            {str(row[0]) for row in partial},
            failed,
            unfinished_turns(list(cut)),
            failure,
            _setup_of_session(store, session_id),
        )


def _facts_of(
    known: _SessionRows,
    texts: _Texts | None = None,
    labels: LabelTexts | None = None,
    digests: StepDigests | None = None,
) -> tuple[dict[str, Any], list[Part]]:
    """Return a session's description and its steps.

    Args:
        known: the rows of the session.
        texts: the content of the steps, if content is compared.
        labels: the texts that replace digests in the steps; None keeps the digests.
        digests: the digests of the content of the steps, if they are compared.
    """
    from replay.divergence.session_diff import Part, stable_lane_names

    restore = labels.replace_in_dicts if labels is not None else list
    parent, forked_turn = known.summary["continues_session_id"], known.summary["forked_turn"]
    summary, failure, *rows = restore([known.summary, known.failure or {}, *known.steps])
    calls = {row["id"]: row["name"] for row in rows if row["kind"] == "tool_call"}
    recorded = list(dict.fromkeys(row["lane"] for row in rows))
    lanes = stable_lane_names(recorded, calls)
    names = names_of_rows(known.lanes, restore)
    types = {row["lane"]: row["agent_type"] for row in restore(known.lanes)}
    types = {lane: agent_type for lane, agent_type in types.items() if agent_type is not None}
    agent_lanes = stable_lane_names(recorded, calls, types)
    fields = Part.__dataclass_fields__
    parts = [
        Part(
            **{k: v for k, v in row.items() if k in fields and k != "lane"},
            lane=lanes[row["lane"]],
            agent=name_of_lane(row["lane"], names),
            agent_lane=agent_lanes[row["lane"]],
            counts_status="lower_bound" if row["id"] in known.partial else None,
            digests=None if digests is None else digests.digests.get((row["kind"], row["id"])),
            ids=None if digests is None else digests.ids.get((row["kind"], row["id"])),
            texts=None if texts is None else texts.get((row["kind"], row["id"])),
        )
        for row in rows
    ]
    about = {
        "name": str(summary["name"]),
        "session_id": known.session_id,
        "outcome": str(summary["status"]),
        "failed_calls": known.failed.count,
        "denied_calls": known.failed.denied,
        "failed_requests": known.failed.requests,
        **_turns(int(summary["turns"]), known.unfinished),
    }
    about["setup"] = known.setup
    if failure:
        about |= {"cause": str(failure["summary"]), "error_class": error_of(failure)}
    if summary["duration_ns"] is not None:
        about["session_duration_ns"] = summary["duration_ns"]
    if forked_turn is not None:
        about |= {"forked_from": parent, "forked_turn": forked_turn}
    return about, parts


def _setup_of_session(store: Store, session_id: str) -> dict[str, Any]:
    """Return what a session was made with, as stored. A value that was not recorded is None.

    Tags that identify the session or count records are left out, because they differ in each session.
    """
    from agentobs.importers.bundle import bundle_origin

    [row] = store.rows("internal/session_setup", session_id=session_id).dicts()
    tags = own_tags(row["tags"] or {})
    is_foreign = bundle_origin(store.home, session_id) is not None
    return {**row, "tags": tags, **({"from_bundle": True} if is_foreign else {})}


def _setup_of_fixture(fixture: Fixture) -> dict[str, Any]:
    """Return what the recording of a fixture was made with: only the facts that fixtures have."""
    versions = fixture.header.get("recorded_with") or {}
    return {
        "name": fixture.name,
        "entry": fixture.header["entry"],
        "sdk_version": versions.get("anthropic"),
        "agentobs_version": versions.get("agentobs-kit"),
    }


def _turns(number: int, unfinished: UnfinishedTurns | None) -> dict[str, Any]:
    """Return the turns of a side of the comparison, as in the JSON."""
    return {
        "turns": number,
        **({"unfinished_turns": unfinished._asdict()} if unfinished else {}),
    }


_Texts = dict[tuple[str, str], dict[str, Any]]
"""Content, by kind and ID of the step."""


def _texts(store: Store, session_id: str) -> _Texts:
    """Return the content of a session, by kind and ID of the step.

    Raises:
        RecordingError: the content was not recorded, or was deleted.
    """
    last_requests: _LastRequests = {}
    exchanges = store.content(session_id).exchanges
    contents = (_content_of(each, last_requests) for each in exchanges)
    return {step: texts for step, texts in contents if texts}


def _content_of(
    exchange: Exchange, last_requests: _LastRequests
) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return the content of a step; `last_requests` is updated."""
    from agentobs.provider.registry import message_of
    from agentobs.records.exchanges import ModelExchange, ToolExchange

    if isinstance(exchange, ModelExchange):
        message = message_of(exchange.question.path, exchange.answer)
        texts = _texts_of(last_requests, exchange.place.lane, exchange.question.body, message)
        return ("request", exchange.attempt_id), texts
    if isinstance(exchange, ToolExchange):
        call = exchange.question
        texts = {"input": call.input, "result": exchange.answer.content}
        return ("tool_call", call.tool_use_id), texts
    return ("", ""), {}


def _texts_of(
    last_requests: _LastRequests, lane: str, body: bytes, message: Message
) -> dict[str, Any]:
    """Return the content that the previous request of the lane does not contain, and the content of the response."""
    from replay.divergence.session_diff import new_in_request, response_parts
    from replay.fixture.body_parts import value_of

    old, known = last_requests.get(lane, (None, []))
    request, answer = value_of(body), response_parts(message)
    last_requests[lane] = request, answer
    return {"asked": new_in_request(old, request, known), "answer": answer}


def _of_fixture(fixture: Fixture, content: bool) -> Iterator[Part]:
    """Yield the steps of a fixture, at today's prices."""
    from agentobs.provider.dialect import text_of
    from agentobs.provider.registry import message_of
    from agentobs.records.canonical_json import size
    from replay.divergence.session_diff import Part, stable_lane_names

    answers = [(ask, message_of(ask.path, ask.answer)) for ask in fixture.requests]
    calls = {str(call.id): call.name for _, message in answers for call in message.calls}
    lanes = stable_lane_names(fixture.lanes, calls)
    last_requests: _LastRequests = {}
    executed = {(tool.lane, tool.question.tool_use_id): tool.answer for tool in fixture.tools}
    for ask, message in answers:
        status = ask.answer.status
        yield Part(
            "request",
            lanes[ask.lane],
            ask.turn,
            ask.path.partition("?")[0],
            model=message.model,
            outcome="ok" if status == 200 and message.error is None else f"{status}",
            stop_reason=message.stop_reason,
            calls=" ".join(call.name for call in message.calls) or None,
            duration_ns=int(ask.chunks[-1][1]) * 1_000_000 if ask.chunks else None,
            texts=_texts_of(last_requests, ask.lane, fixture.body(ask.number), message)
            if content
            else None,
            **_token_usage(ask),
        )
        for call in message.calls:
            answer = executed.get((ask.lane, str(call.id)))
            sent = None if answer else _sent_result(fixture, str(call.id))
            result = answer.content if answer else sent and sent.value
            texts = {"input": call.value, "result": result}
            yield Part(
                "tool_call",
                lanes[ask.lane],
                ask.turn,
                call.name,
                outcome=answer.outcome if answer else None,
                id=str(call.id),
                input_bytes=size(call.value),
                result_bytes=None if result is None else len(text_of(result).encode()),
                texts=texts if content else None,
            )


class _Result(NamedTuple):
    """What a tool call in a fixture led to."""

    tool_use_id: str
    is_error: bool
    is_denied: bool


def _results_of(fixture: Fixture) -> Iterator[_Result]:
    """Yield the result of each tool call in a fixture."""
    from agentobs.provider.registry import message_of

    executed = {(each.lane, each.question.tool_use_id): each.answer for each in fixture.tools}
    for ask in fixture.requests:
        for call in message_of(ask.path, ask.answer).calls:
            answer = executed.get((ask.lane, str(call.id)))
            sent = None if answer else _sent_result(fixture, str(call.id))
            is_error = answer.is_error if answer else sent is not None and sent.is_error
            was_denied = answer is not None and is_denied(
                {"kind": "tool_call", "outcome": answer.outcome}
            )
            yield _Result(str(call.id), is_error, was_denied)


def _failed_calls(results: Sequence[_Result]) -> dict[str, int]:
    """Return the numbers of failed and of denied tool calls, as in the JSON."""
    failed = sum(each.is_error and not each.is_denied for each in results)
    denied = sum(each.is_denied for each in results)
    return {"failed_calls": failed, "denied_calls": denied}


def _sent_result(fixture: Fixture, tool_use_id: str) -> Block | None:
    """Return the result that the agent sent for a tool call; None if no request contains a result for it."""
    from agentobs.provider.registry import dialect_of, history

    for ask in fixture.requests:
        for entry in history(ask.shape.get("body")) or ask.shape.get("add") or []:
            for result in dialect_of(ask.path).turn(entry).results:
                if result.id == tool_use_id:
                    return result
    return None


def _token_usage(ask: RecordedRequest) -> dict[str, Any]:
    """Return the token counts of a response, and its cost at today's prices."""
    from agentobs import world
    from agentobs.ledger import cost_of
    from agentobs.provider.registry import dialect_of
    from agentobs.records.exchanges import Question

    dialect = dialect_of(ask.path)
    facts = dialect.facts(ask.answer)
    if facts.model is None or facts.usage is None:
        return {}
    question = Question(ask.method, ask.path, {}, b"")
    usage_rows = dialect.usage(question, ask.answer, facts, None)
    rows = [row for row in usage_rows if row.billed]
    costs = [cost_of(row, world.now()) for row in rows]
    known = [each.usd for each in costs if each.usd is not None]
    return {
        "input_tokens": sum(row.input_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "cache_read_tokens": sum(row.cache_read_tokens for row in rows),
        "cache_write_tokens": sum(
            row.cache_write_5m_tokens + row.cache_write_1h_tokens for row in rows
        ),
        "counts_status": "lower_bound" if any(r.certainty == "lower_bound" for r in rows) else None,
        "cost_usd": sum(known, Decimal(0)) if len(known) == len(costs) else None,
        "cost_status": "exact" if all(each.status == "exact" for each in costs) else "estimated",
    }


_SIGNS = {"same": "=", "changed": "~", "removed": "-", "added": "+"}


def _show_steps(found: Comparison, everything: bool) -> None:
    """Print the steps side by side; identical steps that are not next to a difference are only counted."""
    sides = [(pair.a, pair.b) for pair in found.pairs]
    names = names_in_both(
        (part.lane, (a.agent if a else None, b.agent if b else None))
        for a, b in sides
        if (part := b or a) is not None
    )
    rows: list[tuple[str, ...]] = []
    skipped = 0
    for at, pair in enumerate(found.pairs):
        near = found.pairs[max(at - AROUND, 0) : at + AROUND + 1]
        if not everything and all(each.change == "same" for each in near):
            skipped += 1
            continue
        rows += [_identical(skipped)] if skipped else []
        skipped = 0
        rows += _rows(pair, names)
    rows += [_identical(skipped)] if skipped else []
    if sys.stdout.isatty():
        _print_blocks(rows)
    else:
        show_table(["", "lane", "turn", "step", "A", "B", "changes"], rows)


_COLORS = {"~": "yellow", "-": "red", "+": "green"}


def _print_blocks(rows: Sequence[tuple[str, ...]]) -> None:
    """Print the rows of steps one below the other, because side by side they do not fit most terminals."""
    terminal = console()
    for sign, lane, turn, step, a, b, changes in rows:
        place = f"{lane}, turn {turn}  " if lane and turn else f"{lane}  " if lane else ""
        terminal.print(Text(f"{sign or ' '}  {place}{step}", style=_COLORS.get(sign, "")))
        for name, value in (("A", a), ("B", b), ("changes", changes)):
            if value:
                terminal.print(Padding(Text(f"{name}  {value}"), (0, 0, 0, 5), expand=False))


def _identical(number: int) -> tuple[str, ...]:
    return "=", "", "", f"{number} step{'s' * (number != 1)} identical", "", "", ""


def _rows(pair: Pair, names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    from replay.comparison.alignment import aligned

    part = pair.b or pair.a
    assert part is not None
    kind_text = {"request": "request", "tool_call": "tool call", "decision": "permission"}[
        part.kind
    ]
    differs = "; ".join(_changed_field(pair, name) for name in pair.differs if name != "texts")
    turns = (side and side.turn for side in (pair.a, pair.b))
    turn = in_both(*("" if each is None else str(each) for each in turns))
    step = f"{kind_text} {part.name}"
    yield (
        _SIGNS[pair.change],
        names[part.lane],
        turn,
        step,
        _step_summary(pair.a),
        _step_summary(pair.b),
        differs,
    )
    width = min(max(console().width - 18, 40), 96)
    for each in pair.differences:
        yield "", "", "", f"  {each.path}", "", "", ""
        yield from (("", "", "", f"    {line}", "", "", "") for line in aligned(each, width))


def _changed_field(pair: Pair, name: str) -> str:
    from replay.divergence.session_diff import DIGESTED

    plain = name.replace("_", " ")
    if name in DIGESTED:
        return f"different {'new messages' if name == 'messages' else plain}"
    a, b = (getattr(part, name) for part in (pair.a, pair.b))
    return f"{plain} {text(a)} -> {text(b)}"


def _step_summary(part: Part | None) -> str:
    """Return the tokens, cost and time of a step in short form."""
    if part is None:
        return ""
    at_least = "at least " if part.counts_status == "lower_bound" else ""
    tokens = (
        f"in {part.input_tokens:,} out {at_least}{part.output_tokens:,}"
        if part.input_tokens
        else ""
    )
    outcome = part.outcome if part.outcome != "ok" else part.stop_reason
    if part.retried:
        outcome = f"{outcome} (retried, {part.retried})"
    cost = certain_money(part.cost_usd, part.cost_status)
    shown = (outcome, tokens, cost, seconds(part.duration_ns))
    return ", ".join(each for each in shown if each)

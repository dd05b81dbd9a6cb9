"""The comparison of two sessions in words: totals, the changes of steps, and the cost of each step.

Pure functions of a comparison: the parsed output of `agentobs diff --json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from agentobs.records import display
from agentobs.records.cost_difference import Cost, cost_difference, open_difference, share_words
from agentobs.records.outcome_difference import outcome_difference
from agentobs.store.analysis.first_changes import (
    CHANGE_WORDS,
    CONTENT,
    different_contents,
    different_facts,
    different_names,
    failure_of_single,
    side_of,
    turns_of,
)
from agentobs.store.analysis.unfinished_turns import unfinished_of, unfinished_words
from dashboards.figures.phrases import certain_money, certainty_prefix, uncertainties

_TOTALS = (
    ("cost_usd", "Cost"),
    ("session_duration_ns", "Duration"),
    ("turns", "Turns (all agents)"),
    ("failed_calls", "Failed tool calls"),
    ("denied_calls", "Denied tool calls"),
    ("failed_requests", "Failed requests"),
    ("requests", "Attempts"),
    ("tool_calls", "Tool calls"),
    ("decisions", "Permission decisions"),
    ("input_tokens", "Uncached input tokens"),
    ("cache_read_tokens", "Cache read tokens"),
    ("cache_write_tokens", "Cache write tokens"),
    ("output_tokens", "Output tokens"),
)
_FIRST = (
    "Outcome", "Cost", "Duration", "Turns (all agents)", "Failed tool calls", "Denied tool calls",
    "Failed requests",
)  # fmt: skip
"""The totals before the models."""
_SIGNS = {"same": "=", "changed": "~", "removed": "−", "added": "+"}
"""The sign of each kind of change."""


@dataclass(frozen=True, slots=True)
class Total:
    """One total of both sessions."""

    name: str
    a: str
    b: str
    difference: str
    """The difference, in words."""
    is_text: bool = False
    """Whether the values are texts, which may be long."""


def totals(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Total]:
    """Return the totals of two sessions, each with the difference in words."""
    outcomes = [str(side.get("outcome") or "") for side in (a, b)]
    found = _texts("Outcome", outcomes, outcome_difference(a, b))
    for key, name in _TOTALS:
        old, new = (_number(key, side.get(key)) for side in (a, b))
        notes = [unfinished_words(unfinished_of(side)) if key == "turns" else "" for side in (a, b)]
        if not (old or new or any(notes)):
            continue
        prefixes = _certainty(key, a), _certainty(key, b)
        before, now = (_shown(key, *each) for each in zip((old, new), prefixes, strict=True))
        if key == "cost_usd":
            words = _cost_difference(a, b, (before, now))
        elif key == "output_tokens" and any(prefixes) and None not in (old, new):
            words = _bounded_difference(
                (old, new), (bool(prefixes[0]), bool(prefixes[1])), (before, now)
            )
        elif old == new and notes[0] != notes[1]:
            words = "no difference of complete turns"
        else:
            words = _difference(key, old, new)
        found.append(Total(name, f"{before}{notes[0]}", f"{now}{notes[1]}", words))
    models = [", ".join(map(str, side.get("models") or ())) for side in (a, b)]
    usual = [total for total in found if total.name in _FIRST]
    return [
        *usual,
        *_texts("Models", models, _equality(*models)),
        *(each for each in found if each not in usual),
    ]


def _equality(a: str, b: str) -> str:
    return "" if not (a and b) else "no difference" if a == b else "different"


def _texts(name: str, values: Sequence[str], difference: str) -> list[Total]:
    """Return a fact of both sessions that is a text; none if neither session has it."""
    a, b = values
    return [Total(name, a or "unknown", b or "unknown", difference, is_text=True)] if a or b else []


_ENDINGS = {
    "completed": "completed",
    "failed": "failed",
    "crashed": "crashed",
    "interrupted": "was interrupted",
    "incomplete": "ended without a record",
}
"""How a session ended, by its status."""


def ending(
    letter: str,
    status: str,
    turns: int,
    failure: Mapping[str, Any] | None,
    *,
    continues: bool,
    has_sub_agents: bool = False,
    failed_agents: Sequence[str] = (),
) -> str:
    """Return how a session ended, in a sentence.

    Args:
        letter: the letter of the session.
        status: its status.
        turns: the number of its last turn of the main agent; 0 if unknown.
        failure: its row in the view `failures`; None if it did not fail.
        continues: whether it has turns after the last turn of the other session.
        has_sub_agents: whether it has sub-agents, so that the sentence names the agent of a turn.
        failed_agents: the types of its sub-agents that failed; an empty text if a type is unknown.
    """
    subject = f"{letter} continued and" if continues else letter
    verb = _ENDINGS.get(status)
    of = " of the main agent" if has_sub_agents else ""
    after = f" after turn {turns:,}{of}" if turns else ""
    if verb is None:
        return f"{letter} is running,{after}." if turns else f"{letter} is running."
    if failure is None:
        return f"{subject} {verb}{after}{_but(failed_agents)}."
    where = _failed_where(failure, of)
    reason, error = failure["reason"], failure["step_class"] or failure["error_class"]
    if failure["cause"] == "result" or not where:
        return f"{subject} {verb}{after}{f': {reason or error}' if reason or error else ''}."
    what = ", ".join(filter(None, (failure["step_name"], error or failure["step_outcome"])))
    return f"{subject} {verb} {where}: {what}."


def _but(failed_agents: Sequence[str]) -> str:
    """Return that sub-agents failed although the session did not; empty if none failed."""
    if not failed_agents:
        return ""
    known = sorted(set(filter(None, failed_agents)))
    if len(failed_agents) == 1:
        return f", but its sub-agent {known[0]} failed" if known else ", but a sub-agent failed"
    named = f" ({', '.join(known)})" if known else ""
    return f", but {len(failed_agents):,} of its sub-agents failed{named}"


def _failed_where(failure: Mapping[str, Any], of_main: str) -> str:
    """Return in which turn a step failed, with `of_main` if the main agent made the step; empty if no step failed."""
    if failure["step_turn"] is None or not failure["step_kind"]:
        return ""
    of = of_main if failure["step_lane"] == "main" else " of a sub-agent"
    return f"in turn {failure['step_turn']:,}{of}"


def not_compared(comparison: Mapping[str, Any]) -> list[str]:
    """Return which parts of the content could not be compared, and why, in sentences."""
    found = []
    for gap in comparison.get("not_compared", ()):
        parts = [CONTENT[name] for name in gap["parts"]]
        names = f"{', '.join(parts[:-1])} and {parts[-1]}"
        if gap["reason"] == "different_homes":
            why = "the sessions were recorded in different homes, and a text is missing"
        else:
            sides = " and ".join(each.upper() for each in gap["missing_in"])
            why = f"the content of {sides} is missing"
        found.append(f"Not comparable: {names}, because {why}.")
    return found


def changes(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence with the numbers of identical, changed, added and removed steps."""
    kinds = [step["change"] for step in steps]
    listed = ", ".join(f"{kinds.count(kind):,} {words}" for kind, words in CHANGE_WORDS.items())
    return f"Steps: {listed}."


def _difference(key: str, old: Any, new: Any) -> str:
    """Return the difference in words."""
    if old is None or new is None:
        return "unknown (a value is missing)"
    if old == new:
        return "no difference"
    less = "less" if key == "session_duration_ns" else "fewer"
    more = "more" if new > old else less
    share = f" ({share_words(old, new)})" if old else ""
    return f"{_shown(key, abs(new - old), '')} {more} in B{share}"


def _bounded_difference(
    values: tuple[int, int], are_low: tuple[bool, bool], shown: tuple[str, str]
) -> str:
    """Return the difference of two counts in words, of which at least one is a lower bound."""
    old, new = values
    if all(are_low) or (old != new and are_low[1] != (new > old)):
        return open_difference(*shown)
    if old == new:
        return "no fewer in B" if are_low[1] else "no more in B"
    return f"at least {abs(new - old):,} {'more' if new > old else 'fewer'} in B"


def _cost_difference(a: Mapping[str, Any], b: Mapping[str, Any], shown: tuple[str, str]) -> str:
    """Return the difference of two costs in words. It is a bound if one of them is a lower bound."""
    found = cost_difference(_cost(a), _cost(b))
    if found is None:
        return "unknown (a value is missing)"
    words = found.words(shown, of=" in B")
    old = _number("cost_usd", a.get("cost_usd"))
    has_share = found.usd and old and found.bound in ("exact", "at_least") and not found.is_open
    return f"{words} ({share_words(old, old + found.usd)})" if has_share else words


def _cost(side: Mapping[str, Any]) -> Cost:
    return Cost(_number("cost_usd", side.get("cost_usd")), *uncertainties(side))


def _shown(key: str, value: Any, prefix: str) -> str:
    if value is None:
        return "unknown"
    if key == "cost_usd":
        return f"{prefix}{display.money(value, 'lower_bound' if prefix.startswith('at least') else None)}"
    return f"{prefix}{display.text(display.pretty(key, value))}"


def _certainty(key: str, side: Mapping[str, Any]) -> str:
    if key == "output_tokens":
        return "at least " if display.has_partial_counts(side) else ""
    return certainty_prefix([side]) if key == "cost_usd" else ""


def _number(key: str, value: Any) -> Any:
    """Return a total as a number; costs are decimal text in JSON."""
    if key != "cost_usd" or value is None:
        return value
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def row(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step as a table row: the kind of change, the cost on both sides, and the changed fields."""
    a, b = step.get("a"), step.get("b")
    step_side = side_of(step)
    return {
        "change": step["change"],
        "sign": _SIGNS[step["change"]],
        "words": CHANGE_WORDS[step["change"]],
        "lane": step_side.get("lane"),
        "turn": display.in_both(*(_turn(each) for each in (a, b))),
        "at": turns_of(step),
        "kind": step_side.get("kind"),
        "name": step_side.get("name"),
        "a": _cost_summary(a),
        "b": _cost_summary(b),
        "differs": [
            (words, *(_value(side, name) for side in (a, b)))
            for words, name in zip(different_facts(step), different_names(step), strict=True)
        ],
        "contents": different_contents(step),
        "failure": failure_of_single(step),
    }


def _turn(side: Mapping[str, Any] | None) -> str:
    """Return the number of the turn of a step; empty if it has none."""
    turn = (side or {}).get("turn")
    return "" if turn is None else f"{turn:,}"


def _value(side: Mapping[str, Any] | None, name: str) -> str:
    return display.text((side or {}).get(name))


def _cost_summary(side: Mapping[str, Any] | None) -> str:
    """Return the time, tokens and cost of a step in short form."""
    if side is None:
        return ""
    is_low = side.get("counts_status") == "lower_bound"
    tokens = [
        f"{'at least ' if is_low and key == 'output_tokens' else ''}{side[key]:,} {label}"
        for key, label in (
            ("input_tokens", "in"),
            ("cache_read_tokens", "read"),
            ("cache_write_tokens", "written"),
            ("output_tokens", "out"),
        )
        if side.get(key)
    ]
    cost = _number("cost_usd", side.get("cost_usd"))
    money = None if cost is None else certain_money(cost, [side])
    duration = display.seconds(side.get("duration_ns"))
    return ", ".join(filter(None, (duration, *tokens, money)))

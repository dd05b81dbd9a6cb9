"""The page that sets two sessions side by side: what they did step by step, and what each step and all of it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.records import shown
from agentobs.store.asking import find_session
from dashboards import figures
from dashboards.app.reading import Row, View
from dashboards.app.sessions import Pages, paged
from dashboards.app.site import answer, known_key, site_of
from dashboards.figures.words import sureness
from dashboards.panels import Panel, panel

PAGE = 100
"""Steps of a page. Our choice."""
LATEST = 100
"""How many sessions can be picked from a list; any other is named by its id. Our choice."""

_TOTALS = (
    ("cost_usd", "Cost"),
    ("duration_ns", "Time of all steps"),
    ("requests", "Requests"),
    ("tool_calls", "Tool calls"),
    ("decisions", "Decisions"),
    ("input_tokens", "Input tokens"),
    ("cache_read_tokens", "Cache read tokens"),
    ("cache_write_tokens", "Cache write tokens"),
    ("output_tokens", "Output tokens"),
)
_SIGNS = {"same": "=", "changed": "~", "removed": "−", "added": "+"}
_WORDS = {"same": "alike", "changed": "changed", "removed": "only in A", "added": "only in B"}


@dataclass(frozen=True, slots=True)
class Total:
    """What both sessions took of one thing."""

    name: str
    a: str
    b: str
    says: str
    """The difference in words."""


def pair(request: Request) -> Response:
    """Show two sessions side by side; without two, a form to name them."""
    query = request.query_params
    named = (query.get("a", "").strip(), query.get("b", "").strip())
    with site_of(request).reader.view() as view:
        ids, found = _ids(request, view, named)
        if len(ids) == 2 and (query.get("a"), query.get("b")) != ids:
            return RedirectResponse(f"/compare?a={ids[0]}&b={ids[1]}", 303)
        if len(ids) < 2:
            return _form(request, view, named, found)
    return _compared(request, ids)


def _ids(
    request: Request, view: View, named: Sequence[str]
) -> tuple[tuple[str, ...], UsageError | None]:
    """Return the ids of the sessions that were named, and what is wrong with the first that is none."""
    key = known_key(site_of(request).home)
    ids: list[str] = []
    for text in named:
        if text:
            try:
                ids.append(find_session(view.connection, text, key=key))
            except UsageError as error:
                return tuple(ids), error
    return tuple(ids), None


def _form(request: Request, view: View, named: Sequence[str], error: UsageError | None) -> Response:
    return answer(
        request,
        "pair_form.html",
        status=404 if error else 200,
        here="compare",
        a=named[0],
        b=named[1],
        error=error,
        latest=view.named("sessions", limit=LATEST),
    )


def _compared(request: Request, ids: Sequence[str]) -> Response:
    compare = site_of(request).compare
    if compare is None:
        raise UsageError("sessions cannot be compared here", todo="agentobs diff A B compares them")
    found = compare(site_of(request).home, ids[0], ids[1])
    steps: list[Row] = list(found["steps"])
    only = "changed" in request.query_params
    chosen = [step for step in steps if step["change"] != "same"] if only else steps
    choice = {"a": ids[0], "b": ids[1], **({"changed": "1"} if only else {})}
    return answer(
        request,
        "pair.html",
        here="compare",
        figures=True,
        a=found["a"],
        b=found["b"],
        totals=totals(found["a"], found["b"]),
        panel=_panel(found),
        changes=sum(step["change"] != "same" for step in steps),
        all_steps=len(steps),
        only=only,
        steps=_told(paged(chosen, request.query_params.get("page"), choice, PAGE)),
    )


def _panel(found: Mapping[str, Any]) -> Panel:
    kinds = [step["change"] for step in found["steps"]]
    says = ", ".join(f"{kinds.count(kind):,} {told}" for kind, told in _WORDS.items())
    drawn = figures.two_sessions(found)
    return panel(
        "two-sessions", "Step by step", f"Of all steps: {says}.", drawn, (), (), is_wide=True
    )


def totals(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Total]:
    """Return what two sessions took, each total with the difference in words."""
    told = []
    for key, name in _TOTALS:
        old, new = (_number(key, side.get(key)) for side in (a, b))
        if not (old or new):
            continue
        sure = _how_sure(key, a), _how_sure(key, b)
        before, now = (_shown(key, *each) for each in zip((old, new), sure, strict=True))
        told.append(Total(name, before, now, _difference(key, old, new, any(sure))))
    return told


def _difference(key: str, old: Any, new: Any, is_doubtful: bool) -> str:
    """Return how the second differs from the first, in words; of what is not exact nobody can tell."""
    if old is None or new is None:
        return "cannot be told: one of them is unknown"
    if is_doubtful:
        return "cannot be told: not both are exact"
    if old == new:
        return "the same"
    more = "more" if new > old else "less"
    share = f" ({abs(new - old) / old:,.0%})" if old else ""
    return f"B {_shown(key, abs(new - old), '')} {more}{share}"


def _shown(key: str, value: Any, how_sure: str) -> str:
    if value is None:
        return "unknown"
    told = shown.text(shown.pretty(key, value))
    return f"{how_sure}{told}"


def _how_sure(key: str, side: Mapping[str, Any]) -> str:
    return sureness([side]) if key == "cost_usd" else ""


def _number(key: str, value: Any) -> Any:
    """Return a total as a number; money comes as decimal text."""
    if key != "cost_usd" or value is None:
        return value
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _told(steps: Pages) -> Pages:
    """Return the steps of a page as its table shows them."""
    rows = [_row(step) for step in steps.rows]
    return Pages(rows, steps.number, steps.count, steps.total, steps.first, steps.choice)


def _row(step: Mapping[str, Any]) -> Row:
    a, b = step.get("a"), step.get("b")
    part = b or a or {}
    return {
        "change": step["change"],
        "sign": _SIGNS[step["change"]],
        "words": _WORDS[step["change"]],
        "lane": part.get("lane"),
        "turn": part.get("turn"),
        "kind": part.get("kind"),
        "name": part.get("name"),
        "a": _took(a),
        "b": _took(b),
        "differs": [
            (name.replace("_", " "), *(_value(side, name) for side in (a, b)))
            for name in step.get("differs", ())
            if name != "texts"
        ],
    }


def _value(side: Mapping[str, Any] | None, name: str) -> str:
    return shown.text((side or {}).get(name))


def _took(side: Mapping[str, Any] | None) -> str:
    """Return what a step took, in a few words."""
    if side is None:
        return ""
    tokens = [
        f"{side[key]:,} {told}"
        for key, told in (
            ("input_tokens", "in"),
            ("cache_read_tokens", "read"),
            ("cache_write_tokens", "written"),
            ("output_tokens", "out"),
        )
        if side.get(key)
    ]
    money = shown.money(_number("cost_usd", side.get("cost_usd")))
    took = shown.seconds(side.get("duration_ns"))
    return ", ".join(filter(None, (took, *tokens, money)))


routes = [Route("/compare", pair)]

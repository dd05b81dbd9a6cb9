"""The page that compares two sessions: their steps, and cost, tokens and time, per step and in total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.records.display import instant
from agentobs.records.setup_difference import setup_changes, setup_unknown
from agentobs.records.whole_numbers import whole_number
from agentobs.records.words import NO_IDENTICAL_STEP
from agentobs.runtime import process
from agentobs.store.analysis.first_changes import (
    FirstChange,
    by_end,
    first_changes,
    starts_of,
    step_text,
)
from agentobs.store.analysis.session_search import SessionTexts
from agentobs.store.session_lookup import find_session
from dashboards import figures
from dashboards.app.comparison.compared_session import ComparedSession
from dashboards.app.comparison.difference_list import difference_rows
from dashboards.app.comparison.pair_headline import (
    StepPlaces,
    endings,
    model_changes,
)
from dashboards.app.comparison.pair_picker import form, shortened
from dashboards.app.paging import page_of
from dashboards.app.site import known_key, page_response, site_of
from dashboards.app.store_view import Row, View
from dashboards.figures.session_pair import lane_names
from dashboards.panels.pair_summary import changes, not_compared, row, totals
from dashboards.panels.panels import Panel, panel

PAGE_SIZE = 100
"""Steps per page. Our choice."""
MOST_LISTED = 12
"""The number of rows of the list of differences. Our choice."""
PARTNER_LENGTH = 32
"""The number of characters of a title in a link, so that it fits next to the tabs of a session page. Our choice."""
MOST_COMPARISONS = 4
"""The number of cached comparisons. A comparison of two sessions of 1,000 turns takes about 5 MB. Our choice."""


def pair(request: Request) -> Response:
    """Show the comparison of two sessions, or a form that selects them."""
    query = request.query_params
    names = (query.get("a", "").strip(), query.get("b", "").strip())
    with site_of(request).reader.view() as view:
        ids, found = _ids(request, view, names)
        if len(ids) == 2 and (query.get("a"), query.get("b")) != ids:
            return RedirectResponse(f"/compare?{urlencode({'a': ids[0], 'b': ids[1]})}", 303)
        if len(ids) < 2:
            previous = previous_session(view, ids[0]) if ids else {}
            return form(request, view, names, ids, found, previous)
    return _compared(request, (ids[0], ids[1]))


def _ids(
    request: Request, view: View, names: Sequence[str]
) -> tuple[tuple[str, ...], UsageError | None]:
    """Return the IDs of the named sessions, and the error about the first invalid one."""
    key = known_key(site_of(request).home)
    ids: list[str] = []
    for text in names:
        if text:
            try:
                ids.append(find_session(view.store, text, key=key))
            except UsageError as error:
                return tuple(ids), error
    return tuple(ids), None


def _compared(request: Request, ids: tuple[str, str]) -> Response:
    steps: list[Row]
    with site_of(request).reader.view() as view:
        sides = [ComparedSession.of(request, view, each) for each in ids]
        comparison = _comparison(request, view, sides)
        steps = list(comparison["steps"])
        places = [StepPlaces.of(side) for side in sides]
        running = [side.rows("internal/session_summary") for side in sides]
        failures = [next(iter(side.restored("internal/failure")), None) for side in sides]
        ordered = by_end(steps, [starts_of(side.restored("session_steps")) for side in sides])
        ended = endings(sides, steps, running, failures, places)
        titles = SessionTexts(view.store, view.texts).titles(ids)
        # Texts are read each time, because they may be deleted while the comparison is cached.
        setups = view.texts.replace_in_dicts(
            [{"setup": comparison[side].get("setup")} for side in "ab"]
        )
    names = lane_names(steps)
    different = [number for number in ordered if steps[number - 1]["change"] != "same"]
    failed_calls = [each.failed_calls for each in places]
    firsts = first_changes(steps, ordered, names, failed_calls)
    query = request.query_params
    is_only_changed = "changed" in query
    numbered: list[Row] = [
        {"number": number, "step": step}
        for number, step in enumerate(steps, start=1)
        if step["change"] != "same" or not is_only_changed
    ]
    parameters = {"a": ids[0], "b": ids[1], **({"changed": "1"} if is_only_changed else {})}
    listed = page_of(numbered, query.get("page"), parameters, PAGE_SIZE)
    selected = _selected(query.get("step"), len(steps), [each.number for each in firsts])
    rows = difference_rows(steps, different, names, failed_calls)
    return page_response(
        request,
        "pair.html",
        nav_item="compare",
        figures=True,
        a=comparison["a"],
        b=comparison["b"],
        causes=[str(each["summary"]) if each else "" for each in failures],
        endings=ended,
        titles={each: titles.get(each, "") for each in ids},
        firsts=firsts,
        models=model_changes(comparison, names),
        setup=setup_changes(*setups),
        setup_unknown=setup_unknown(*setups),
        names=names,
        first_note=NO_IDENTICAL_STEP if steps and len(different) == len(steps) else "",
        notes=[*_notes(running), *not_compared(comparison)],
        totals=totals(comparison["a"], comparison["b"]),
        panel=_panel(comparison),
        changes=len(different),
        a_part_is_missing="not_compared" in comparison,
        all_steps=len(steps),
        is_only_changed=is_only_changed,
        selected=_selected_step(steps, selected, places, names),
        neighbors=_neighbors(selected, different),
        listed=rows[:MOST_LISTED],
        unlisted=sum(each["steps"] for each in rows[MOST_LISTED:]),
        lead=_lead(selected, firsts),
        parameters=parameters,
        link=_link,
        steps=replace(
            listed, rows=[{"number": each["number"], **row(each["step"])} for each in listed.rows]
        ),
    )


def _comparison(
    request: Request, view: View, sides: Sequence[ComparedSession]
) -> Mapping[str, Any]:
    """Return the comparison of two sessions, which is cached if both have ended.

    Raises:
        UsageError: sessions cannot be compared here.
    """
    compare = site_of(request).compare
    if compare is None:
        raise UsageError("sessions cannot be compared here", todo="Run agentobs diff A B instead")
    a, b = sides
    if a.cache.key is None or b.cache.key is None:
        return compare(view.store, a.session_id, b.session_id)
    key = a.cache.key, b.cache.key
    recent = process.state(RecentComparisons).found
    if key not in recent:
        found = compare(view.store, a.session_id, b.session_id)
        if len(recent) >= MOST_COMPARISONS:
            recent.clear()
        recent[key] = found
        return found
    return recent[key]


class RecentComparisons:
    """A cache of the last comparisons of ended sessions, which the pages of a comparison share."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self.found: dict[tuple[Any, ...], Mapping[str, Any]] = {}


def _selected(text: str | None, count: int, lead: Sequence[int]) -> int | None:
    """Return the number of the selected step; without a valid one in the URL, of the most important difference."""
    number = whole_number(text)
    if number is not None and 1 <= number <= count:
        return number
    return lead[0] if lead else None


def _selected_step(
    steps: Sequence[Row],
    number: int | None,
    places: Sequence[StepPlaces],
    names: Mapping[str, str],
) -> dict[str, Any] | None:
    if number is None:
        return None
    step = steps[number - 1]
    sides = [
        {
            "part": step.get(side),
            "session_id": place.session_id,
            "step": place.step_id(step.get(side)),
        }
        for side, place in zip("ab", places, strict=True)
    ]
    return {
        **row(step),
        "number": number,
        "text": step_text(step, names),
        "sides": dict(zip("ab", sides, strict=True)),
    }


def _lead(number: int | None, firsts: Sequence[FirstChange]) -> str:
    """Return of what the selected step is the first one, such as `change of outcome`; empty if it is not."""
    return next((each.of for each in firsts if each.number == number), "")


def _neighbors(number: int | None, different: Sequence[int]) -> tuple[int | None, int | None]:
    """Return the numbers of the closest steps before and after a step that differ."""
    if number is None:
        return None, None
    if number in different:
        at = different.index(number)
        return (
            different[at - 1] if at else None,
            different[at + 1] if at + 1 < len(different) else None,
        )
    before = [each for each in different if each < number]
    after = [each for each in different if each > number]
    return (before[-1] if before else None, after[0] if after else None)


def _notes(summaries: Sequence[Sequence[Row]]) -> list[str]:
    """Return why totals of a session are lower bounds, in sentences."""
    notes = []
    for letter, rows in zip("AB", summaries, strict=True):
        if rows and rows[0]["status"] == "running":
            notes.append(f"{letter} is running: its totals so far are lower bounds.")
        elif rows and rows[0]["dropped"]:
            notes.append(f"{letter} is incomplete: its totals are lower bounds.")
    return notes


def _link(parameters: Mapping[str, str], **changes: Any) -> str:
    values = {**parameters, **changes}
    return (
        f"/compare?{urlencode({name: each for name, each in values.items() if each is not None})}"
    )


def _panel(comparison: Mapping[str, Any]) -> Panel:
    figure = figures.two_sessions(comparison)
    summary = changes(comparison["steps"])
    return panel("two-sessions", "Steps side by side", summary, figure, (), (), is_wide=True)


def previous_run(request: Request) -> Response:
    """Redirect to the comparison of a session with the previous session of the same name."""
    session_id = request.query_params.get("b", "")
    with site_of(request).reader.view() as view:
        found = find_session(view.store, session_id, key=known_key(site_of(request).home))
        previous = previous_session(view, found)["previous"]
    if previous is None:
        raise UsageError(
            "no earlier session has the same name",
            where=found,
            todo="Select two sessions in the list, or pass both to /compare",
        )
    return RedirectResponse(f"/compare?{urlencode({'a': previous, 'b': found})}", 303)


def previous_session(view: View, session_id: str) -> dict[str, Any]:
    """Return the previous session with the same name: its ID as `previous`, None if there is none, and as
    `previous_kind` what a link calls it: `run` if it has the same entry point and first messages, else `session`.
    If there is none, the next session with this name is `next`, with its `next_kind`. `partner` tells the reader which
    session it is: the title of a `session`, the start of a `run`, because runs have the same title.
    """
    found: dict[str, Any] = dict(
        previous=None, previous_kind="", next=None, next_kind="", partner=""
    )
    for neighbor in view.named("internal/neighboring_run", session_id=session_id):
        place = "next" if neighbor["is_later"] else "previous"
        found[place] = str(neighbor["session_id"])
        found[f"{place}_kind"] = "run" if neighbor["is_same_task"] else "session"
        title = ""
        if not neighbor["is_same_task"]:
            titles = SessionTexts(view.store, view.texts).titles([found[place]])
            title = shortened(titles.get(found[place], ""), PARTNER_LENGTH)
        found["partner"] = f"“{title}”" if title else f"of {instant(neighbor['started_ns'])}"
    return found


routes = [Route("/compare/previous", previous_run), Route("/compare", pair)]

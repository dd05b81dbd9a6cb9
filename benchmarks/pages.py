"""The cost of the dashboard's pages at scale, compared with the same pages of a small home.

The server runs in this process, so its CPU time is measured without the time of a browser. The floor is a page of a
small home. It contains everything that does not depend on the amount of data, such as the request and the rendering.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import quote

from agentobs.recording.journal.home import Home, open_home
from agentobs.store.analysis.session_search import SessionTexts
from agentobs.store.backend import open_store
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.text_index import IndexedText, TextIndex
from benchmarks.measure import Cost, Round, compare, cost_of, milliseconds, peak_kb, ratio
from benchmarks.report import Section, Verdict
from tests.browser import store_builders
from tests.browser.store_builders import FIRST_NS, recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.dashboards.live_app import Client, attempts, serving

ROUNDS = 11
SESSIONS, FEW_SESSIONS = 100_000, 1_000
TURNS, FEW_TURNS = 5_000, 100
RESULT_BYTES, FEW_BYTES = 10_000_000, 10_000
UPDATES = 5
"""The number of rounds in which a session is recorded while a page is open."""
READY_SECONDS = 300.0
"""How long to wait for the failure signatures of a home."""

LARGE, SMALL, REPEATED = "large", "small", "small, repeated"
"""The variants: the page of the large home, and twice that of the small home, which is the floor."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the benchmark."""

    label: str
    path: str
    """The path for GET, or the form to press."""
    most: float
    """The target: the cost in the large home divided by the cost in the small home."""


LISTS = (
    Page("the first page", "/", 2.5),
    Page("sorted by cost", "/?sort=-cost", 2.5),
    Page("needs attention first", "/?sort=-attention", 2.5),
    Page("the last page", f"/?page={SESSIONS}", 2.5),
    Page("a model and a status", "/?model=claude-opus-5-5&status=failed", 2.5),
    Page("a signature", "/?signature=repeated_tool_errors", 2.5),
    Page("a search for one word", "/?q=coder", 3.0),
    Page("a search for a tag, `branch=main`", f"/?q={quote('branch=main')}", 3.0),
    Page("a search for a word in titles", "/?q=refund", 3.0),
    Page("a search for four words", "/?q=coder+opus+bash+refund", 4.0),
    Page("the fleet page, again", "/fleet", 2.0),
)
"""The pages of all sessions. Without caches and limits, their ratio would be 100."""
FIRST_LISTS = (
    Page("the first search since something was recorded", "/?q=refund", 30.0),
    Page("the fleet page for the first time since then", "/fleet", 15.0),
)
"""The requests whose result is kept for later ones, until something is recorded."""
TABS = (
    Page("trace", "?", 2.0),
    Page("trace, only failed steps", "?failed=1", 10.0),
    Page("overview", "?tab=overview", 3.0),
    Page("cost", "?tab=cost", 3.0),
    Page("time", "?tab=time", 3.0),
    Page("steps, the last page", "?tab=steps&page=9999", 3.0),
    Page("25 turns of the waterfall", "?from=60&to=84", 5.0),
)
"""The tabs of a session, when they are shown again. Without caches and limits, their ratio would be 50."""
FIRST_TAB = Page("trace, for the first time", "", 50.0)
"""The tab that is opened first computes the tree and the figures of all turns, so its ratio is that of the turns."""
CONTENTS = (
    Page("the messages of a request", "messages", 20.0),
    Page("the transcript", "transcript", 20.0),
)
"""The pages with the result. It is 1,000 times as large as that of the floor and has to be read from the vault."""
MOST_BYTES = 100_000
"""The maximum size of a page that shows a part of the result, in bytes."""
MOST_MB = 150.0
"""The maximum memory for showing the result, in MB: the recorded bytes, the decoded text and parts of it."""


def sections() -> Iterator[Section]:
    """Build the homes, and request their pages."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        yield from _list_sections(folder)
        yield _session_section(folder)
        yield _result_section(folder)


def _list_sections(folder: Path) -> Iterator[Section]:
    homes = {
        LARGE: _titled(folder / "sessions", SESSIONS),
        SMALL: _titled(folder / "few-sessions", FEW_SESSIONS),
    }
    with ExitStack() as stack:
        clients = {name: stack.enter_context(serving(home)) for name, home in homes.items()}
        for client in clients.values():
            _await_signatures(client)
        first = {
            page: _first_cost(page, clients, dict.fromkeys(clients, "")) for page in FIRST_LISTS
        }
        measured = {page.label: _compared(page, clients) for page in LISTS}
        yield _section(
            f"Pages of {SESSIONS:,} sessions",
            f"All sessions have titles. The floor is the same page of {FEW_SESSIONS:,} sessions.",
            LISTS,
            measured,
            first,
        )
        yield _update_section(homes, clients)


def _titled(path: Path, sessions: int) -> Home:
    """Build a home of sessions with titles, which a search would otherwise read from recorded content."""
    home = store_builders.large(path, sessions, seconds_apart=60, has_content=True)
    with open_store(home, ingest=False) as store:
        ids = [str(row[0]) for row in store.rows("sessions", causes=False).rows]
    words = ("refund", "order", "lamp", "parser", "migration", "test", "module")
    with TextIndex(home) as index:
        index.put(
            "title",
            (
                IndexedText(each, "prompt", f"Fix the {words[n % 7]} of {words[n // 7 % 7]} {n}")
                for n, each in enumerate(ids)
            ),
        )
    with open_store(home, ingest=False) as store:
        assert SessionTexts(store).all_titles(seconds=0).unread == 0
    return home


def _await_signatures(client: Client) -> None:
    until = time.monotonic() + READY_SECONDS
    while "still being computed" in client.get("/?signature=repeated_calls").words:
        assert time.monotonic() < until, "the signatures are not computed"
        time.sleep(0.2)


def _first_cost(page: Page, clients: Mapping[str, Client], paths: Mapping[str, str]) -> Round:
    """Return the cost of a request that is measured once, because its result is kept for later ones."""
    return {
        name: cost_of(partial(_get, client, paths[name] + page.path))
        for name, client in clients.items()
    }


def _get(client: Client, path: str) -> int:
    found = client.get(path)
    assert found.status == 200, (path, found.status)
    return len(found.body)


def _press(client: Client, path: str) -> int:
    found = client.press(path)
    assert found.status == 200, (path, found.status)
    return len(found.body)


def _compared(page: Page, clients: Mapping[str, Client]) -> list[Round]:
    return _compared_calls({name: partial(_get, each, page.path) for name, each in clients.items()})


def _compared_calls(calls: Mapping[str, Callable[[], int]]) -> list[Round]:
    """Compare the calls for the large and the small home; each is called once before."""
    for call in calls.values():
        call()

    def measured(call: Callable[[], int], _: int) -> Cost:
        return cost_of(call)

    variants = {
        LARGE: partial(measured, calls[LARGE]),
        SMALL: partial(measured, calls[SMALL]),
        REPEATED: partial(measured, calls[SMALL]),
    }
    return compare(variants, range(ROUNDS))


def _section(
    title: str,
    method: str,
    pages: tuple[Page, ...],
    measured: Mapping[str, list[Round]],
    first: Mapping[Page, Round],
) -> Section:
    rows = [
        (
            page.label,
            f"{milliseconds(measured[page.label], LARGE, 'process_ns'):.0f}",
            f"{milliseconds(measured[page.label], SMALL, 'process_ns'):.0f}",
            f"{ratio(measured[page.label], LARGE, SMALL, 'process_ns'):.2f}",
            f"{ratio(measured[page.label], REPEATED, SMALL, 'process_ns'):.2f}",
        )
        for page in pages
    ]
    ratios = [
        (page, ratio(measured[page.label], LARGE, SMALL, "process_ns"), ROUNDS) for page in pages
    ]
    for page, costs in first.items():
        large, small = costs[LARGE].process_ns / 1e6, costs[SMALL].process_ns / 1e6
        rows.append((page.label, f"{large:.0f}", f"{small:.0f}", f"{large / small:.2f}", ""))
        ratios.append((page, large / small, 1))
    return Section(
        title,
        f"{ROUNDS} rounds; milliseconds of CPU of the process that serves the page, medians. {method} The last rows "
        "are requests that are measured once, because later ones use their result.",
        ("page", "CPU", "floor", "x floor", "floor, repeated, x floor"),
        tuple(rows),
        tuple(
            Verdict(
                f"{title}: {page.label}, CPU, divided by the floor",
                page.most,
                found,
                "{:.2f}",
                "The query reads the rows of all sessions or steps.",
                rounds,
            )
            for page, found, rounds in ratios
        ),
    )


def _update_section(homes: Mapping[str, Home], clients: Mapping[str, Client]) -> Section:
    """Record sessions while a page is open, and measure the time until it is told to update itself."""
    found: dict[str, list[Cost]] = {LARGE: [], SMALL: []}
    for number in range(UPDATES):
        for name in (LARGE, SMALL):
            found[name].append(_update(homes[name], clients[name], number))
    wall = {name: median(each.wall_ns for each in costs) / 1e9 for name, costs in found.items()}
    cpu = {name: median(each.process_ns for each in costs) / 1e9 for name, costs in found.items()}
    return Section(
        f"The update of an open page with {SESSIONS:,} sessions",
        f"{UPDATES} rounds. Seconds from the last record of a new session until the server announces that the page is "
        f"outdated, medians. The floor is a home of {FEW_SESSIONS:,} sessions. The failure signatures of new sessions "
        "are computed later and not included.",
        ("", "wall", "CPU"),
        tuple((name, f"{wall[name]:.2f}", f"{cpu[name]:.2f}") for name in (LARGE, SMALL)),
        (
            Verdict(
                f"an open page with {SESSIONS:,} sessions is told about new data, wall",
                2.0,
                wall[LARGE],
                "{:.2f} s",
                _OPENS,
                UPDATES,
            ),
            Verdict(
                f"an open page with {SESSIONS:,} sessions is told about new data, CPU, divided by the floor",
                10.0,
                cpu[LARGE] / cpu[SMALL],
                "{:.2f}",
                _OPENS,
                UPDATES,
            ),
        ),
    )


_OPENS = "The next state of the store is opened, and the rows of all sessions are computed again."


def _update(home: Home, client: Client, number: int) -> Cost:
    """Record a session, and return the cost until the revision changes."""
    before = client.get("/revision").body
    with recording(home) as emit:
        SyntheticSession(emit, f"new-{number}", FIRST_NS + number, seed=number).end()

    def wait() -> None:
        until = time.monotonic() + READY_SECONDS
        while client.get("/revision").body == before:
            assert time.monotonic() < until, "the page is not updated"
            time.sleep(0.05)

    cost = cost_of(wait)
    _await_signatures(client)
    return cost


def _session_section(folder: Path) -> Section:
    """Compare the tabs of a session with many turns and of one with few turns."""
    homes = {
        LARGE: store_builders.long(folder / "turns", TURNS),
        SMALL: store_builders.long(folder / "few-turns", FEW_TURNS),
    }
    with ExitStack() as stack:
        clients = {name: stack.enter_context(serving(home)) for name, home in homes.items()}
        paths = {name: _session_path(client) for name, client in clients.items()}
        first = {FIRST_TAB: _first_cost(FIRST_TAB, clients, paths)}
        measured = {
            page.label: _compared_calls(
                {
                    name: partial(_get, each, paths[name] + page.path)
                    for name, each in clients.items()
                }
            )
            for page in TABS
        }
    return _section(
        f"A session of {TURNS:,} turns",
        f"The tabs of its page. The floor is a session of {FEW_TURNS} turns.",
        TABS,
        measured,
        first,
    )


def _session_path(client: Client) -> str:
    return client.get("/").links("/sessions/")[0].partition("?")[0].partition("#")[0]


def _result_section(folder: Path) -> Section:
    """Compare the pages that show a large and a small tool result, and measure their size and memory."""
    homes = {
        LARGE: _with_result(folder / "result", RESULT_BYTES),
        SMALL: _with_result(folder / "small-result", FEW_BYTES),
    }
    rows, verdicts = [], []
    with ExitStack() as stack:
        clients = {name: stack.enter_context(serving(home)) for name, home in homes.items()}
        for page in CONTENTS:
            calls = {
                name: partial(_press, each, _content_path(homes[name], each, page.path))
                for name, each in clients.items()
            }
            memory, size = _added_mb(calls[LARGE]), calls[LARGE]()
            rounds = _compared_calls(calls)
            times = ratio(rounds, LARGE, SMALL, "process_ns")
            rows.append(
                (
                    page.label,
                    f"{milliseconds(rounds, LARGE, 'process_ns'):.0f}",
                    f"{milliseconds(rounds, SMALL, 'process_ns'):.0f}",
                    f"{times:.2f}",
                    f"{size:,}",
                    f"{memory:.0f} MB",
                )
            )
            label = f"a tool result of {RESULT_BYTES // 1_000_000} MB: {page.label}"
            verdicts += [
                Verdict(f"{label}, CPU, divided by the floor", page.most, times, "{:.1f}", _READS, ROUNDS),
                Verdict(f"{label}, bytes sent", MOST_BYTES, size, "{:,.0f} bytes"),
                Verdict(f"{label}, memory", MOST_MB, memory, "{:.0f} MB", _READS),
            ]  # fmt: skip
    return Section(
        f"A tool result of {RESULT_BYTES // 1_000_000} MB",
        f"{ROUNDS} rounds; milliseconds of CPU of the process that serves the page, medians. The floor is the same "
        f"page with a result of {FEW_BYTES // 1_000} KB. Memory is the growth of the peak memory while the page is "
        "rendered for the first time.",
        ("page", "CPU", "floor", "x floor", "bytes sent", "memory"),
        tuple(rows),
        tuple(verdicts),
    )


_READS = "The whole request is read from the vault, decompressed and parsed, to show a part of it."


def _with_result(path: Path, size: int) -> Home:
    """Record a session in which a tool returns a text of `size` bytes."""
    home = open_home(path)
    with recording(home) as emit:
        story = SyntheticSession(emit, "log-reader", FIRST_NS, seed=3)
        with story.interaction("Read the log."):
            call = {
                "type": "tool_use",
                "id": story.call_id(),
                "name": "read",
                "input": {"path": "log"},
            }
            story.turn(call)
            lines = (
                f"2026-09-21 12:00:00 INFO request {n} took 12 ms\n" for n in range(size // 40)
            )
            story.results(story.run_call(call, "".join(lines)[:size]))
            story.turn(text("All requests were fast."))
        story.end()
    ingest(home)
    return home  # fmt: skip


def _content_path(home: Home, client: Client, name: str) -> str:
    if name == "transcript":
        return f"{_session_path(client)}/transcript"
    return f"/attempts/{attempts(home)[-1]}/{name}"


def _added_mb(call: Callable[[], object]) -> float:
    """Return by how much the peak memory of the process exceeds its memory before a call, in MB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak, see proc(5)
    before = peak_kb()
    call()
    return (peak_kb() - before) / 1024

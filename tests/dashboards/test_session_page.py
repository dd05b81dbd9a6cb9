"""The page of a session: its facts, what is missing, its figures, its steps in pages, and ways to the rest."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import ToolAnswer
from agentobs.records.facts import Gap
from agentobs.records.labels import Label
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.duckdb.ingest import ingest
from dashboards.app.session_page import KEPT, MOST_KEPT, PAGE, WINDOW, Ended
from dashboards.app.store_view import Reader, Row
from tests.dashboards.opening import Client, asked, attempts, opened
from tests.exporters.making_rich import rich_home
from tests.store.making import (
    SECOND,
    T0,
    a_home,
    attempt,
    conversation,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
    write_facts,
)

LONG, FAILED, RUNNING, LOST, ODD, REFUSED = (session_id(number) for number in range(1, 7))
TURNS = 120
EVIL = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A long session, one that failed in two turns, one that died, one that lost records, and one with odd names."""
    home = a_home(tmp_path_factory.mktemp("sessions"))
    calls = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]
    record(home, conversation(1, turns=TURNS, name="long", team="red"))
    record(
        home,
        [
            start(2, "failing"),
            attempt(2, 1, content=calls),
            tool(2, "toolu_1", "weather", at=T0 + 2 * SECOND),
            permission(2, "toolu_1", at=T0 + 2 * SECOND, behavior="deny", interaction_id=None),
            attempt(2, 3, status=529),
            end(2, failed=True),
        ],
    )
    record(home, [start(3, "running"), attempt(3, 1)])
    record(home, [start(4, "lossy"), attempt(4, 1), replace(end(4), dropped=3)])
    write_facts(home, [Gap(LOST, T0 + SECOND, Label("tool_results"), Label("disk"), 3)])
    odd = attempt(5, 1, model=EVIL)
    record(home, [start(5, EVIL, tag=EVIL), odd, end(5)])
    refused = replace(
        tool(6, "toolu_1", "weather", at=T0 + 2 * SECOND), answer=ToolAnswer("no", True)
    )
    record(home, [start(6, "refused"), attempt(6, 1, content=calls), refused, end(6)])
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with opened(home) as made:
        yield made


def rows_of(page: str) -> int:
    """Return how many rows the table of steps has."""
    steps = page.partition('id="steps"')[2].partition("</section>")[0]
    return len(re.findall(r"<tr>\s*<td class=.at.>", steps))


def test_the_head_tells_how_it_went(client: Client) -> None:
    """Name, status in words, reason, instants with their zone, tags, tokens in four classes, and money."""
    got = client.get(f"/sessions/{FAILED}")
    assert got.status == 200
    for word in (
        "failing",
        "failed",
        "ValueError",
        "exception:ValueError@stories:run",
        "duration 1 min",
    ):
        assert word in got.words
    assert '<time datetime="2026-09-21T14:13:20Z">' in got.html
    tiles = (
        "Input tokens 10",
        "Cache read tokens 0",
        "Cache write tokens 0",
        "Output tokens 20",
        "Tool calls 1",
    )
    assert [tile for tile in tiles if tile not in got.words] == []
    assert "team=red" in client.get(f"/sessions/{LONG}").words


def test_a_session_is_found_by_its_name_and_an_end_of_its_id(client: Client) -> None:
    """Either leads to the page under its whole id, with what else was asked."""
    for told in ("long", LONG[:8]):
        got = client.get(f"/sessions/{told}?page=2")
        assert (got.status, got.headers["location"]) == (303, f"/sessions/{LONG}?page=2")


def test_a_session_that_is_not_there_is_one_sentence(client: Client) -> None:
    """With what to do, whatever stands in the address."""
    for told in ("nothing-like-it", "%3Cscript%3Ealert(1)", "a" * 3000):
        got = client.get(f"/sessions/{told}")
        assert got.status == 404
        assert "no session with that id or name" in got.words
        assert "<script>" not in got.html


def test_a_page_of_a_long_session_has_a_bounded_number_of_rows(home: Home, client: Client) -> None:
    """Its steps come in pages, in order and each once; a page beyond the last is the last."""
    seen: list[str] = []
    for page in (1, 2, 3):
        got = client.get(f"/sessions/{LONG}?page={page}")
        assert rows_of(got.html) <= PAGE
        seen += got.links("/attempts/")
    assert seen == [f"/attempts/{each}" for each in asked_of(home, LONG)]
    assert len(seen) == TURNS
    assert f"101–{TURNS} of {TURNS} steps" in client.get(f"/sessions/{LONG}?page=99").words
    assert f"1–50 of {TURNS} steps" in client.get(f"/sessions/{LONG}?page=x").words


def asked_of(home: Home, session: str) -> list[str]:
    found = asked(
        home, f"SELECT attempt_id FROM attempts WHERE session_id = '{session}' ORDER BY started_ns"
    )
    return [str(row[0]) for row in found]


def test_only_what_failed_is_shown_on_demand(home: Home, client: Client) -> None:
    """Requests, calls and decisions that went wrong, each with the way to its request."""
    everything = client.get(f"/sessions/{FAILED}")
    failed = client.get(f"/sessions/{FAILED}?failed=1")
    assert (rows_of(everything.html), rows_of(failed.html)) == (4, 2)
    assert "http_error 529 overloaded_error" in failed.words
    assert "deny person" in failed.words
    first, second = asked_of(home, FAILED)
    assert failed.links("/attempts/") == [f"/attempts/{first}", f"/attempts/{second}"]
    [row] = re.findall(
        r"<tr>\s*<td class=.at.>.*?</tr>",
        client.get(f"/sessions/{REFUSED}?failed=1").html,
        re.DOTALL,
    )
    assert "tool call weather" in row
    assert "No failed steps." in client.get(f"/sessions/{LONG}?failed=1").words


def test_the_waterfall_shows_a_part_on_demand(client: Client) -> None:
    """Turns from one number to another; whatever nonsense the address says, a part that is there is shown."""
    whole = client.get(f"/sessions/{LONG}")
    assert f"All {TURNS} turns" in whole.words
    assert f"?from=1&to={WINDOW}#waterfall" in whole.links("?from")
    part = client.get(f"/sessions/{LONG}?from=11&to=20")
    assert f"Turns 11 to 20 of {TURNS}" in part.words
    assert {"?from=1&to=10#waterfall", "?from=21&to=30#waterfall"} <= set(part.links("?from"))
    for asked_for, shown in (
        ("from=0&to=9999", f"1 to {TURNS}"),
        ("from=50&to=3", "50 to 50"),
        ("from=-1&to=x", "All"),
    ):
        assert shown in client.get(f"/sessions/{LONG}?{asked_for}").words


def test_a_part_of_the_waterfall_and_a_page_of_steps_stand_beside_each_other(
    client: Client,
) -> None:
    """Turning over the steps keeps the part that is drawn, and another part keeps the page and what was asked for."""
    whole = client.get(f"/sessions/{LONG}?from=11&to=20&page=2")
    assert "?from=11&to=20&page=3#steps" in whole.links("?from")
    assert "?from=21&to=30&page=2#waterfall" in whole.links("?from")
    assert "?page=2#waterfall" in whole.links("?")
    assert "?from=11&to=20&failed=1#steps" in whole.links("?from")
    failed = client.get(f"/sessions/{LONG}?from=11&to=20&failed=1")
    assert "?from=21&to=30&failed=1#waterfall" in failed.links("?from")
    assert "?from=11&to=20#steps" in failed.links("?from")
    assert re.findall('type="hidden" name="([a-z]+)" value="([^"]*)"', failed.html) == [
        ("failed", "1")
    ]


def test_a_session_that_did_not_end_says_so(client: Client) -> None:
    """Its process is gone: it crashed, and the page says what its money then is."""
    words = client.get(f"/sessions/{RUNNING}").words
    assert "crashed" in words
    assert "The process died before the session ended" in words
    assert "last activity" in words


def test_what_was_lost_is_said_on_top(client: Client) -> None:
    """How many records, of what, and that sums are lower bounds then."""
    words = client.get(f"/sessions/{LOST}").words
    assert "Incomplete: 3 records were not written" in words
    assert "3 records of tool_results disk lost in the recorder" in words
    assert "at least" in words


def test_names_are_text_whatever_they_hold(client: Client) -> None:
    """Of the session, its tags and its models."""
    got = client.get(f"/sessions/{ODD}")
    assert got.status == 200
    allowed = {"application/json", None}
    scripts = [attributes for tag, attributes in got.tags if tag == "script"]
    assert {each.get("type") for each in scripts} <= allowed
    assert all("src" in each for each in scripts if each.get("type") is None)


def test_each_signature_of_failure_is_told(client: Client) -> None:
    """Those that fire with what to do, those that do not, and those of which nothing can be told."""
    words = client.get(f"/sessions/{FAILED}").words.replace("_", " ")
    assert [each.name for each in SIGNATURES if each.name.replace("_", " ") not in words] == []
    assert "Not found:" in words
    assert "Could not be checked:" in words


def test_commands_go_on_from_the_page(client: Client) -> None:
    """What the terminal can do with this session is there to be copied, with its whole id."""
    words = client.get(f"/sessions/{FAILED}").words
    for command in ("show", "freeze", "report", "diagnose"):
        assert f"agentobs {command} {FAILED}" in words


def test_regions_that_change_can_be_replaced(client: Client) -> None:
    """The head, the sums, figures and steps have ids by which a newer page replaces them; what was said has none."""
    got = client.get(f"/sessions/{LONG}")
    live = [str(attributes["id"]) for _, attributes in got.tags if "data-live" in attributes]
    assert {"head", "totals", "panels", "steps", "diagnosis"} <= set(live)
    assert "transcript" not in live
    assert 'name="agentobs-revision"' in got.html


def test_each_figure_has_words_and_numbers(client: Client) -> None:
    """No figure stands alone: its sentence and its rows are in the page, for whoever cannot see it."""
    got = client.get(f"/sessions/{LONG}")
    drawn = [str(a["data-figure"]) for _, a in got.tags if "data-figure" in a]
    assert "turns" in drawn
    for name in drawn:
        panel = got.html.partition(f'id="{name}"')[2].partition("</section>")[0]
        assert re.search(r'<p class="says">[^<]+', panel), name
        assert "<table>" in panel, name


def test_a_rich_session_shows_hooks_permissions_and_agents(tmp_path: Path) -> None:
    """What our own loop tells is there: hooks and what became of them, who allowed what, and each lane."""
    home = rich_home(tmp_path)
    with opened(home) as client:
        session = str(asked(home, "SELECT session_id FROM sessions")[0][0])
        got = client.get(f"/sessions/{session}")
        assert got.status == 200
        for heading in ("Hooks", "Permissions", "Waterfall", "Cost by agent"):
            assert heading in got.words
        assert all(f"/attempts/{each}" in got.links("/attempts/") for each in attempts(home))


def test_the_sessions_of_a_conversation_lead_to_each_other(tmp_path: Path) -> None:
    """A session that goes on from another one names it, with what each cost."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    resumed = start(2, "resumed", T0 + 90 * SECOND)
    fact = replace(resumed.start, continues_session_id=Label(session_id(1)), relation="resume")
    record(
        home,
        [
            replace(resumed, start=fact),
            attempt(2, 1, at=T0 + 91 * SECOND),
            end(2, T0 + 99 * SECOND),
        ],
    )
    with opened(home) as client:
        for one, other in ((1, 2), (2, 1)):
            got = client.get(f"/sessions/{session_id(one)}")
            assert "Conversation with 2 sessions" in got.words
            assert f"/sessions/{session_id(other)}" in got.links("/sessions/")


def test_what_comes_after_the_end_is_drawn_all_the_same(tmp_path: Path) -> None:
    """Figures of a session that has ended are kept, until anything of it is another."""
    home = a_home(tmp_path)
    record(home, conversation(1, turns=1))
    with opened(home) as client:
        assert "1 turn used 30 tokens" in client.get(f"/sessions/{LONG}").words
        assert "1 turn used 30 tokens" in client.get(f"/sessions/{LONG}").words
        record(home, [attempt(1, 2, at=T0 + 61 * SECOND)])
        for _ in range(200):
            if "2 turns used 60 tokens" in client.get(f"/sessions/{LONG}").words:
                return
        pytest.fail("what is new was not drawn")


def test_an_ended_session_is_asked_about_once(home: Home) -> None:
    """Figures, diagnosis and steps are kept, few of them and none that are long; of one that runs nothing is."""
    with Reader(home) as reader, reader.view() as view:
        [ended] = view.named("internal/session", session_id=LONG)
        asked_for: list[str] = []

        def ask(what: str, about: Row) -> list[str]:
            def told() -> list[str]:
                asked_for.append(what)
                return [what]

            return Ended.of(home, view, about).get(what, told)

        assert [ask("rows", ended) for _ in range(2)] == [["rows"], ["rows"]]
        assert asked_for == ["rows"]
        for _ in range(2):
            ask("rows", {**ended, "status": "running"})
        assert len(asked_for) == 3
        for number in range(KEPT):
            ask(f"panels {number}", ended)
        ask("rows", ended)
        assert len(asked_for) == 3 + KEPT + 1
        for _ in range(2):
            found = Ended.of(home, view, ended).get("many", lambda: [0] * (MOST_KEPT + 1))
            assert found == [0] * (MOST_KEPT + 1)
            found.clear()


def test_plotly_brings_no_style_that_the_policy_refuses(client: Client) -> None:
    """The only text that it sets as a style is empty; that of maps, which no page has, was taken out."""
    got = client.get(f"/sessions/{LONG}")
    [script] = [
        str(a["src"]) for _, a in got.tags if str(a.get("src", "")).endswith("plotly.min.js")
    ]
    source = client.get(script).body.decode()
    assert source.count('createElement("style")') == 2
    assert "maplibregl-map{" not in source


def test_looking_writes_nothing_into_a_home(tmp_path: Path) -> None:
    """A home that has no key, and whose database is up to date, is the same file by file after a look at each page."""
    home = a_home(tmp_path)
    record(home, conversation(1, name="one"))
    record(home, conversation(2, name="two"))
    ingest(home)
    (home.path / "key").unlink(missing_ok=True)
    one, two = session_id(1), session_id(2)

    def files() -> dict[str, tuple[int, int]]:
        found = ((path, path.lstat()) for path in home.path.rglob("*"))
        return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found}

    with opened(home) as client:
        assert client.get("/").status == 200
        before = files()
        attempt_id = attempts(home)[0]
        for path in (
            "/", "/?q=one", "/fleet", "/sql", "/sql/tables", "/revision", f"/sessions/{one}", "/sessions/two",
            f"/sessions/{one}/ledger", f"/attempts/{attempt_id}", f"/attempts/{attempt_id}/diff", "/compare",
            f"/compare?a={one}&b={two}", "/compare?a=one&b=two",
        ):  # fmt: skip
            assert client.get(path).status in (200, 303), path
        assert client.get("/sessions/three").status == 404
        client.press(f"/sessions/{one}/transcript")
        assert files() == before


def test_a_home_that_is_gone_is_told_as_that(tmp_path: Path) -> None:
    """After a home was deleted each page says that nothing is recorded there, and nothing about keys."""
    gone = a_home(tmp_path / "gone")
    record(gone, conversation(1, name="one"))
    with opened(gone) as client:
        assert client.get(f"/sessions/{session_id(1)}").status == 200
        shutil.rmtree(gone.path)
        while (got := client.get(f"/sessions/{session_id(1)}")).status == 200:
            pass  # until it was looked for
        for each in (got, client.get("/"), client.get("/compare?a=one&b=one")):
            assert each.status == 503
            assert "no recordings found" in each.words
            assert "cannot record" not in each.words
        assert not gone.path.exists()

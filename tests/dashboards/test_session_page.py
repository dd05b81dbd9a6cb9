"""The page of a session shows its facts, missing data, figures, paged steps, and links."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentobs.recording.journal.home import Home
from agentobs.records.effect_facts import Command
from agentobs.records.exchanges import Place, ToolAnswer
from agentobs.records.facts import Gap
from agentobs.records.labels import Label
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.duckdb.ingest import ingest
from dashboards.app.session_cache import MOST_RESULTS, MOST_ROWS, SessionCache
from dashboards.app.session_page import PAGE_SIZE, TABS, WINDOW_TURNS
from dashboards.app.store_view import Reader
from tests.dashboards.live_app import Client, attempts, query_rows, serving
from tests.dashboards.test_context_growth import context_event
from tests.exporters.sample_session import sample_home
from tests.store.recordings import (
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

LONG, FAILED, RUNNING, LOST, ODD, REFUSED, OUT_OF_TURNS, COMPACTED = map(session_id, range(1, 9))
TURNS = 120
EVIL = "</td><script>alert(1)</script>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with sessions that are long, failed in two turns, crashed, lost records, have unusual names, were resumed,
    or compacted the conversation.
    """
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
    cut = attempt(7, 3)
    record(
        home,
        [
            start(7, "out-of-turns"),
            attempt(7, 1),
            replace(cut, answer=replace(cut.answer, ending="cut")),
            replace(
                end(7, failed=True), reason=Label("max_turns"), signature=Label("result:max_turns")
            ),
        ],
    )
    record(
        home,
        [
            start(8, "compacted"),
            attempt(8, 1, content=calls),
            replace(refused, place=Place(COMPACTED)),
            replace(
                context_event("compaction", 2.5, "auto", tokens_before=9_000), session_id=COMPACTED
            ),
            attempt(8, 3, cache_creation_input_tokens=500),
            replace(attempt(8, 4), answer=replace(cut.answer, ending="cut")),
            end(8),
        ],
    )
    record(home, conversation(9))
    resumed = start(10, "resumed", T0 + 90 * SECOND)
    fact = replace(resumed.start, continues_session_id=Label(session_id(9)), relation="resume")
    resumed = replace(resumed, start=fact)
    at = T0 + 91 * SECOND
    record(home, [resumed, attempt(10, 1, at=at), end(10, T0 + 99 * SECOND)])
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


def step_count(page: str) -> int:
    """Return the number of rows of the table of steps."""
    steps = page.partition('id="steps"')[2].partition("</section>")[0]
    return len(re.findall(r"<tr>\s*<td class=.at.>", steps))


@pytest.mark.slow
def test_the_header_shows_the_outcome(client: Client) -> None:
    """The header shows name, status, reason, times with their zone, tags, and six key figures."""
    got = client.get(f"/sessions/{FAILED}")
    assert got.status == 200
    for word in (
        "failing",
        "failed",
        "ValueError",
        "duration 1 min",
    ):
        assert word in got.words
    assert '<time datetime="2026-09-21T14:13:20Z">' in got.html
    overview = client.get(f"/sessions/{FAILED}?tab=overview").words
    assert "exception:ValueError@stories:run" in overview
    assert "Show the failure" in overview
    tiles = (
        "Duration 1 min",
        "Cost ",
        "Turns 1 complete and 1 without a response 2 requests, 1 attempt failed",
        # The call was executed after all, although its permission was denied.
        "Tool calls 1 none failed",
        "Input tokens incl. cache 10",
        "Output tokens 20",
    )
    assert [tile for tile in tiles if tile not in got.words] == []
    # The filter for failed steps agrees with the tiles, and names what else is marked.
    failed = client.get(f"/sessions/{FAILED}/tree?failed=1").words
    marked = "also marked as failed: 2 interactions."
    assert f"1 request attempt failed; {marked}" in failed
    words = client.get(f"/sessions/{FAILED}?tab=cost").words
    classes = "10 uncached input, 0 read from the cache, 0 written to it, 20 output."
    assert f"Tokens: {classes}" in words
    assert "team=red" in client.get(f"/sessions/{LONG}").words


@pytest.mark.slow
def test_a_session_is_found_by_name_or_id_suffix(client: Client) -> None:
    """A name and a suffix of an ID redirect to the page with the full ID, and keep the query string."""
    for name in ("long", LONG[:8]):
        got = client.get(f"/sessions/{name}?page=2")
        assert (got.status, got.headers["location"]) == (303, f"/sessions/{LONG}?page=2")


def test_an_unknown_session_gives_one_sentence(client: Client) -> None:
    """The page of an unknown session has one sentence with a suggestion, whatever the URL contains."""
    for name in ("nothing-like-it", "%3Cscript%3Ealert(1)", "a" * 3000):
        got = client.get(f"/sessions/{name}")
        assert got.status == 404
        assert "no session with that ID or name" in got.words
        assert "<script>" not in got.html


@pytest.mark.slow
def test_steps_are_paged(home: Home, client: Client) -> None:
    """Steps are paged in order, each on one page; a page number after the last page gives the last page."""
    seen: list[str] = []
    for page in (1, 2, 3):
        got = client.get(f"/sessions/{LONG}?tab=steps&page={page}")
        assert step_count(got.html) <= PAGE_SIZE
        seen += got.links("/attempts/")
    assert seen == [f"/attempts/{each}" for each in asked_of(home, LONG)]
    assert len(seen) == TURNS
    assert (
        f"101–{TURNS} of {TURNS} steps" in client.get(f"/sessions/{LONG}?tab=steps&page=99").words
    )
    assert f"1–50 of {TURNS} steps" in client.get(f"/sessions/{LONG}?tab=steps&page=x").words


def asked_of(home: Home, session: str) -> list[str]:
    found = query_rows(
        home, f"SELECT attempt_id FROM attempts WHERE session_id = '{session}' ORDER BY started_ns"
    )
    return [str(row[0]) for row in found]


@pytest.mark.slow
def test_the_banner_says_first_why_the_session_ended(client: Client) -> None:
    """After a result such as `max_turns`, the last error is not called the failure. A cut response is named."""
    got = client.get(f"/sessions/{OUT_OF_TURNS}")
    assert "Failed with max_turns ; last error: request to" in got.words
    assert "the response was cut" in got.words
    assert "Go to this step" in got.words
    assert "Turns 1 complete and 1 cut off" in got.words
    assert (
        "Turns 1 complete and 1 cut off" in client.get(f"/sessions/{OUT_OF_TURNS}?tab=cost").words
    )


@pytest.mark.slow
def test_only_failed_steps_on_demand(home: Home, client: Client) -> None:
    """On demand, only failed requests, tool calls and decisions are listed, each with a link to its request."""
    everything = client.get(f"/sessions/{FAILED}?tab=steps")
    failed = client.get(f"/sessions/{FAILED}?tab=steps&failed=1")
    assert (step_count(everything.html), step_count(failed.html)) == (4, 2)
    assert "HTTP 529: overloaded_error" in failed.words
    assert "deny person" in failed.words
    first, second = asked_of(home, FAILED)
    assert failed.links("/attempts/") == [f"/attempts/{each}" for each in (first, second)]
    [row] = re.findall(
        r"<tr>\s*<td class=.at.>.*?</tr>",
        client.get(f"/sessions/{REFUSED}?tab=steps&failed=1").html,
        re.DOTALL,
    )
    assert "tool call weather" in row
    assert "No failed steps." in client.get(f"/sessions/{LONG}?tab=steps&failed=1").words


@pytest.mark.slow
def test_the_waterfall_shows_a_range_of_turns(client: Client) -> None:
    """A range of turns can be selected; an invalid range in the URL is replaced by an existing one."""
    whole = client.get(f"/sessions/{LONG}")
    assert f"All {TURNS} turns" in whole.words
    assert f"?from=1&to={WINDOW_TURNS}#waterfall" in whole.links("?from")
    part = client.get(f"/sessions/{LONG}?from=11&to=20")
    assert f"Turns 11 to 20 of {TURNS}" in part.words
    assert {"?from=1&to=10#waterfall", "?from=21&to=30#waterfall"} <= set(part.links("?from"))
    for asked_for, shown in (
        ("from=0&to=9999", f"1 to {TURNS}"),
        ("from=50&to=3", "50 to 50"),
        ("from=-1&to=x", "All"),
    ):
        assert shown in client.get(f"/sessions/{LONG}?{asked_for}").words


@pytest.mark.slow
def test_the_range_keeps_the_selected_step_and_the_filter(home: Home, client: Client) -> None:
    """Another range of the waterfall keeps the selected step and the filter of the tree in the URL."""
    step = asked_of(home, LONG)[14]
    got = client.get(f"/sessions/{LONG}?from=11&to=20&find=claude&step={step}")
    assert f"?from=21&to=30&find=claude&step={step}#waterfall" in got.links("?from")
    assert f"?find=claude&step={step}#waterfall" in got.links("?find")
    hidden = re.findall('type="hidden" name="([a-z]+)" value="([^"]*)"', got.html)
    assert {("find", "claude"), ("step", step)} <= set(hidden)


@pytest.mark.slow
def test_a_crashed_session_is_marked(client: Client) -> None:
    """The status of the session is crashed, and the page explains what this means."""
    words = client.get(f"/sessions/{RUNNING}").words
    assert "crashed" in words
    assert "The process died before the session ended" in words
    assert "last activity" in words


@pytest.mark.slow
def test_lost_records_are_shown_at_the_top(client: Client) -> None:
    """The warning contains the number and kind of lost records, and states that sums are lower bounds."""
    words = client.get(f"/sessions/{LOST}").words
    assert "Incomplete: 3 records were not written" in words
    assert "3 records of tool_results disk were lost in the recorder" in words
    assert "Cost ≥ $" in words


def test_names_are_text(client: Client) -> None:
    """The names of the session, its tags and its models are shown as text."""
    got = client.get(f"/sessions/{ODD}")
    assert got.status == 200
    allowed = {"application/json", None}
    scripts = [attributes for tag, attributes in got.tags if tag == "script"]
    assert {each.get("type") for each in scripts} <= allowed
    assert all("src" in each for each in scripts if each.get("type") is None)


@pytest.mark.slow
def test_each_failure_signature_is_listed(client: Client) -> None:
    """Signatures that were found have a suggestion; the others are listed as not found or not checked."""
    words = client.get(f"/sessions/{FAILED}?tab=overview").words.replace("_", " ")
    assert [each.name for each in SIGNATURES if each.name.replace("_", " ") not in words] == []
    assert "Not found:" in words
    assert "Could not be checked:" in words


@pytest.mark.slow
def test_commands_contain_the_full_id(client: Client) -> None:
    """The page lists commands for the terminal, with the full session ID."""
    words = client.get(f"/sessions/{FAILED}?tab=overview").words
    for command in ("show", "freeze", "report", "diagnose"):
        assert f"agentobs {command} {FAILED}" in words


@pytest.mark.slow
def test_live_regions_have_ids(client: Client) -> None:
    """The header, totals, figures and steps have IDs, so that a newer page can replace them.

    Content is never replaced.
    """
    live: dict[str, set[str]] = {}
    for tab in TABS:
        got = client.get(f"/sessions/{LONG}?tab={tab}")
        assert 'name="agentobs-revision"' in got.html
        live[tab] = {
            str(attributes["id"]) for _, attributes in got.tags if "data-live" in attributes
        }
        assert {"head", "totals"} <= live[tab]
        assert "failure-place" in live[tab]
    assert {"tree", "tree-count", "tree-empty", "failure-links", "panels"} <= live["trace"]
    assert "panels" in live["cost"]
    assert "step" not in live["trace"]
    assert "diagnosis" in live["overview"]
    assert "steps" in live["steps"]
    assert "transcript" not in live["transcript"]


@pytest.mark.slow
def test_each_figure_has_a_summary_and_a_table(client: Client) -> None:
    """Each figure has a summary and a table of its rows, for users who cannot see the figure."""
    drawn: list[str] = []
    for tab in TABS:
        got = client.get(f"/sessions/{LONG}?tab={tab}")
        names = [str(a["data-figure"]) for _, a in got.tags if "data-figure" in a]
        drawn += names
        for name in names:
            panel = got.html.partition(f'id="{name}"')[2].partition("</section>")[0]
            in_list = re.search(rf'<li><a href="#{name}">[^<]+</a>: [^<]+', got.html)
            in_panel = re.search(r'<p class="summary">[^<]+', panel)
            assert bool(in_list) is not bool(in_panel), name
            assert "<table>" in panel, name
        assert bool(TABS[tab][1]) is ("plotly.min.js" in got.html), "plotly is large"
    assert {"waterfall", "turns", "context", "time"} <= set(drawn)


@pytest.mark.slow
def test_a_session_of_our_loop_shows_hooks_permissions_and_agents(tmp_path: Path) -> None:
    """The page shows hooks with their outcome, permission decisions with their source, and each lane."""
    home = sample_home(tmp_path)
    with serving(home) as client:
        session = str(query_rows(home, "SELECT session_id FROM sessions")[0][0])
        for tab, heading in (
            ("overview", "Hooks"),
            ("overview", "Permissions"),
            ("trace", "Waterfall"),
            ("cost", "Cost by agent"),
        ):
            got = client.get(f"/sessions/{session}?tab={tab}")
            assert got.status == 200
            assert heading in got.words
        steps = client.get(f"/sessions/{session}?tab=steps")
        assert all(f"/attempts/{each}" in steps.links("/attempts/") for each in attempts(home))


@pytest.mark.slow
def test_the_sessions_of_a_conversation_are_linked(client: Client) -> None:
    """A session that was resumed lists all sessions of its conversation with their costs."""
    for one, other in ((9, 10), (10, 9)):
        got = client.get(f"/sessions/{session_id(one)}?tab=overview")
        assert "Sessions of this conversation (2)" in got.words
        assert f"/sessions/{session_id(other)}" in got.links("/sessions/")


@pytest.mark.slow
def test_new_data_of_an_ended_session_is_shown(tmp_path: Path) -> None:
    """The figures of an ended session are cached only until its data changes."""
    home = a_home(tmp_path)
    record(home, conversation(1, turns=1))
    with serving(home) as client:
        assert "1 turn used 30 tokens" in client.get(f"/sessions/{LONG}?tab=cost").words
        assert "1 turn used 30 tokens" in client.get(f"/sessions/{LONG}?tab=cost").words
        record(home, [attempt(1, 2, at=T0 + 61 * SECOND)])
        for _ in range(200):
            if "2 turns used 60 tokens" in client.get(f"/sessions/{LONG}?tab=cost").words:
                return
            time.sleep(0.05)  # until the next check for new data
        pytest.fail("what is new was not drawn")


@pytest.mark.slow
def test_results_about_an_ended_session_are_cached(home: Home) -> None:
    """Results about ended sessions are cached until their data changes, and those about running sessions for one state.

    Long results are not cached, and the number of cached results is bounded.
    """
    with Reader(home) as reader, reader.view() as view:
        ended, running = LONG, "no-session-that-has-ended"
        asked_for: list[str] = []

        def ask(what: str, session: str) -> list[str]:
            def compute() -> list[str]:
                asked_for.append(what)
                return [what]

            return SessionCache.of(home, view, session).get(what, compute)

        assert [ask("rows", ended) for _ in range(2)] == [["rows"], ["rows"]]
        assert asked_for == ["rows"]
        for _ in range(2):
            ask("rows", running)
        assert len(asked_for) == 2
        with reader.view() as other:
            assert other.results is view.results
        for number in range(MOST_RESULTS):
            ask(f"panels {number}", ended)
        ask("rows", ended)
        assert len(asked_for) == 2 + MOST_RESULTS + 1
        cache, half = SessionCache.of(home, view, ended), MOST_ROWS // 2
        for _ in range(2):
            found = cache.get("too many", lambda: [0] * (half + 1))
            assert found == [0] * (half + 1)
            found.clear()
        first, second = (cache.get(name, lambda: [0] * half) for name in ("first", "second"))
        assert cache.get("first", list) is first
        cache.get("third", lambda: [0])
        assert cache.get("first", list) is first
        assert cache.get("second", list) is not second


@pytest.mark.slow
def test_effects_after_the_end_of_a_session_are_shown(tmp_path: Path) -> None:
    """A command that is recorded after its session has ended is shown, although the session was shown before."""
    home, session = a_home(tmp_path), session_id(1)
    record(home, [start(1), attempt(1, 1), end(1)])
    fact = Command(
        session, None, Label("main"), 1, "c", None, None, Label("gitlog"), "shim", T0 + 1, T0 + 2, 1, "exited", 0,
        None, 1, 1, None, None, None, False, 0, 0,
    )  # fmt: skip
    for is_recorded in (False, True):
        if is_recorded:
            write_facts(home, [fact])
        with serving(home) as made:
            for tab in ("trace", "why"):
                words = made.get(f"/sessions/{session}?tab={tab}").words
                assert ("gitlog" in words) is is_recorded


@pytest.mark.slow
def test_plotly_adds_no_blocked_style(client: Client) -> None:
    """The script of Plotly contains no style of maps, which no page uses and the policy would block."""
    got = client.get(f"/sessions/{LONG}")
    [script] = [
        str(a["src"]) for _, a in got.tags if str(a.get("src", "")).endswith("plotly.min.js")
    ]
    source = client.get(script).body.decode()
    assert source.count('createElement("style")') == 2
    assert "maplibregl-map{" not in source


@pytest.mark.slow
def test_viewing_pages_writes_nothing(tmp_path: Path) -> None:
    """Opening all pages changes no file of a home without a key whose store is up to date."""
    home = a_home(tmp_path)
    record(home, conversation(1, name="one"))
    record(home, conversation(2, name="two"))
    ingest(home)
    (home.path / "key").unlink(missing_ok=True)
    one, two = session_id(1), session_id(2)

    def files() -> dict[str, tuple[int, int]]:
        found = ((path, path.lstat()) for path in home.path.rglob("*"))
        return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found}

    with serving(home) as client:
        assert client.get("/").status == 200
        before = files()
        attempt_id = attempts(home)[0]
        for path in (
            "/", "/?q=one", "/fleet", "/sql", "/sql/tables", "/revision", f"/sessions/{one}", "/sessions/two",
            *(f"/sessions/{one}?tab={tab}" for tab in TABS), f"/sessions/{one}/tree", f"/sessions/{one}/step",
            f"/sessions/{one}/ledger", f"/attempts/{attempt_id}", f"/attempts/{attempt_id}/diff", "/compare",
            f"/compare?a={one}&b={two}", "/compare?a=one&b=two",
        ):  # fmt: skip
            assert client.get(path).status in (200, 303), path
        assert client.get("/sessions/three").status == 404
        client.press(f"/sessions/{one}/transcript")
        assert files() == before


@pytest.mark.slow
def test_a_deleted_home_is_reported(tmp_path: Path) -> None:
    """After a home was deleted, each page states that no recordings were found, and does not mention keys."""
    gone = a_home(tmp_path / "gone")
    record(gone, conversation(1, name="one"))
    with serving(gone) as client:
        assert client.get(f"/sessions/{session_id(1)}").status == 200
        shutil.rmtree(gone.path)
        while (got := client.get(f"/sessions/{session_id(1)}")).status == 200:
            time.sleep(0.05)  # until the next check for new data
        for each in (got, client.get("/"), client.get("/compare?a=one&b=one")):
            assert each.status == 503
            assert "no recordings found" in each.words
            assert "cannot record" not in each.words
        assert not gone.path.exists()


@pytest.mark.slow
def test_the_tab_cost_names_compactions_and_what_is_uncertain(home: Home, client: Client) -> None:
    """The summary names what compactions wrote to the cache, failed calls, and why a total is a lower bound."""
    [[partly]] = query_rows(
        home,
        "SELECT count(*) FROM costs "
        f"WHERE cost_status = 'lower_bound' AND session_id = '{COMPACTED}'",
    )
    assert partly == 1
    words = client.get(f"/sessions/{COMPACTED}?tab=cost").words
    assert re.search(
        r"About \$[\d.]+ on 1 compaction \(turn \d\), not counted as waste: the request after it wrote 500 tokens to "
        r"the cache( and sent \d+ uncached)?, as the cache does not contain the shortened conversation yet",
        words,
    )
    assert re.search(r"\$[\d.]+ on 1 request with 1 failed tool call", words)
    assert re.search(
        r"The total is at least \$[\d.]+: the cost of 1 call is only partly known\.", words
    )


@pytest.mark.slow
def test_a_turn_is_opened_by_its_number(home: Home, client: Client) -> None:
    """The number of a turn leads to the step of its request; an unknown turn is reported."""
    [attempt_id] = [
        str(row[0])
        for row in query_rows(
            home, f"SELECT attempt_id FROM attempts WHERE session_id = '{LONG}' AND turn = 7"
        )
    ]
    got = client.get(f"/sessions/{LONG}?turn=7")
    assert (got.status, got.headers["location"]) == (303, f"/sessions/{LONG}?step={attempt_id}")
    for wrong in ("999", "<b>"):
        got = client.get(f"/sessions/{LONG}?turn={wrong}")
        assert got.status == 404
        assert f"Its turns are 1 to {TURNS}." in got.words
        assert f"/sessions/{LONG}" in got.links("/sessions/")
    shown = client.get(f"/sessions/{LONG}")
    assert f"Turn of the main agent (1–{TURNS})" in shown.words
    assert re.findall('name="turn" min="1" max="([0-9]+)"', shown.html) == [str(TURNS)]
    assert "sub-agents" not in shown.words.partition("Tool calls")[0]
    assert client.get("/sessions/none?turn=1").links("/sessions/") == []

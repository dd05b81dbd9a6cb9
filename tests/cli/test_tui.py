"""`agentobs tui`: the full-screen application, driven by keys as a user presses them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, OptionList, Static, TabbedContent, Tree

from agentobs.cli import main
from agentobs.cli.terminal.transcript import Entry
from agentobs.cli.tui.application import Browser, SessionList, _name_lines
from agentobs.cli.tui.playback import SPEEDS, Playback
from agentobs.cli.tui.playback_pane import PlaybackPane
from agentobs.cli.tui.session_data import Listed, Node, SessionData, tree
from agentobs.cli.tui.session_screen import (
    SessionScreen,
    _banner,
    _below,
    _cost,
    _details,
    _prompt,
    _totals,
)
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import ToolAnswer
from agentobs.records.labels import Label
from agentobs.records.words import ESTIMATED_TIMES, UNSEEN_WAITS
from agentobs.sink import Record
from agentobs.store.analysis.failed_steps import NO_CLASS
from agentobs.store.analysis.waste import Waste, session_waste, stored_rows
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect
from tests.cli.pseudo_terminal import on_terminal
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    copied,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
)
from tests.store.wire_conversations import WireConversation

CALL = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]
LONG = [{"type": "text", "text": "\n".join(f"word {at}" for at in range(30))}]
HOSTILE = "[bold red]not markup[/] \x1b[31mno color\x1b[0m \u202eno direction"


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """An ingested home with two completed sessions and, in between, a failed one with a rejected attempt and a denied
    call; tests use copies of it.
    """
    home = a_home(tmp_path_factory.mktemp("recorded"))
    record(home, [start(1, "first"), attempt(1, 1), end(1)])
    record(home, [
        start(2, "refund-loop", at=T0 + SECOND),
        attempt(2, 1, at=T0 + SECOND, status=529),
        attempt(2, 1, at=T0 + 2 * SECOND, content=[*CALL, {"type": "text", "text": HOSTILE}]),
        permission(2, "toolu_1", at=T0 + 3 * SECOND, behavior="deny"),
        tool(2, "toolu_1", "weather", at=T0 + 4 * SECOND),
        attempt(2, 2, at=T0 + 6 * SECOND),
        end(2, failed=True),
    ])  # fmt: skip
    record(home, [start(3, "last", at=T0 + 2 * SECOND), attempt(3, 1), end(3)])
    connect(home).close()
    return home


@pytest.fixture
def home(recorded_once: Home, tmp_path: Path) -> Home:
    return copied(recorded_once, tmp_path)


def driven(home: Home, drive: Callable[[Pilot[None]], Awaitable[None]], **options: Any) -> None:
    """Run the application in a terminal of 120x24, and drive it."""

    async def run() -> None:
        async with Browser(SessionData(home), **options).run_test(size=(120, 24)) as pilot:
            await settled(pilot)
            await drive(pilot)

    asyncio.run(run())


async def settled(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, and wait until everything that they started has been shown."""
    await pilot.press(*keys)
    await pilot.pause()
    while any(not worker.is_finished for worker in pilot.app.workers):
        await pilot.pause()
    await pilot.pause()
    await pilot.pause()


async def looked(pilot: Pilot[None]) -> None:
    """Look for new records now, as the application does every two seconds."""
    looking = pilot.app.screen
    assert isinstance(looking, SessionList | SessionScreen)
    looking._look()
    await settled(pilot)


def rows(pilot: Pilot[None], table_id: str) -> list[list[str]]:
    table: DataTable[Text] = pilot.app.screen.query_one(table_id, DataTable)
    return [[cell.plain.strip() for cell in table.get_row_at(at)] for at in range(table.row_count)]


def shown(pilot: Pilot[None], widget_id: str) -> str:
    return str(pilot.app.screen.query_one(widget_id, Static).visual)


def screen(pilot: Pilot[None]) -> str:
    """Return everything that is on the screen."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


@pytest.mark.slow
def test_failed_sessions_come_first(home: Home) -> None:
    """The list shows the failed session with its cause first, then the others, the newest first; a filter applies.

    The question mark shows the keys, and Escape hides them.
    """

    async def drive(pilot: Pilot[None]) -> None:
        listed = rows(pilot, "#sessions")
        assert [row[0] for row in listed] == ["failed", "completed", "completed"]
        assert listed[0][2] == "ValueError"
        assert [row[1] for row in listed[1:]] == [
            "last  line 0 of session 3",
            "first  line 0 of session 1",
        ]
        await settled(pilot, "slash", *"session 3", "enter")
        assert [row[1] for row in rows(pilot, "#sessions")] == ["last  line 0 of session 3"]
        await settled(pilot, "escape")
        assert len(rows(pilot, "#sessions")) == 3
        await settled(pilot, "question_mark")
        assert "next and previous failure" in screen(pilot)
        await settled(pilot, "escape")
        assert "next and previous failure" not in screen(pilot)

    driven(home, drive)


@pytest.mark.slow
def test_the_list_explains_sessions_on_a_narrow_terminal(tmp_path: Path) -> None:
    """A cause is wrapped and not cut, a completed session shows its failed calls, and signatures are in words."""
    home = a_home(tmp_path)
    failed = ToolAnswer("no", is_error=True, outcome="failed")
    calls = [{**CALL[0], "id": f"toolu_{at}"} for at in range(9)]
    turns = [
        attempt(1, at + 1, at=T0 + at * SECOND, content=[each]) for at, each in enumerate(calls)
    ]
    runs = [
        replace(
            tool(1, str(each["id"]), "weather", at=T0 + at * SECOND + SECOND // 2), answer=failed
        )
        for at, each in enumerate(calls)
    ]
    steps = [each for pair in zip(turns, runs, strict=True) for each in pair]
    record(home, [start(1, "first"), *steps, end(1)])
    reason = Label("a_reason_that_is_longer_than_one_line")
    ended = replace(end(2, failed=True), reason=reason, signature=Label(f"declared:{reason}"))
    record(home, [start(2, "second", at=T0 + SECOND), attempt(2, 1, at=T0 + SECOND), ended])

    async def drive(pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        listed = rows(pilot, "#sessions")
        assert "".join(listed[0][2].split()) == f"declaredbytheagent:{reason}"
        causes = " ".join(listed[1][2].split())
        assert causes.startswith("9 calls of weather failed, ")
        assert [each[1].split("\n")[0] for each in listed] == ["second", "first"]
        assert "_" not in causes
        assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d", listed[1][3])
        assert "9 calls" in screen(pilot)
        await settled(pilot, "down", "enter")
        banner = shown(pilot, "#banner")
        assert banner.startswith(f"first {session_id(1)}")
        assert "9 tool calls (9 failed)" in " ".join(banner.split())
        failures = f"9 failed tool calls: all weather ({NO_CLASS})"
        assert f"\n{failures}\n" in banner
        assert failures in screen(pilot)

    driven(home, drive)


def test_sessions_of_one_name_can_be_told_apart() -> None:
    """A row has the name and the title, in one line if they fit; the end of a title is not cut on 80 columns."""
    session = Listed("01", "nightly-audit", "Where is order 4705?", "completed", "", T0, None)
    assert _name_lines(session, 18) == ["nightly-audit", "Where is order", "4705?"]
    assert _name_lines(session, 40) == ["nightly-audit  Where is order 4705?"]
    assert _name_lines(replace(session, title=""), 40) == ["nightly-audit"]
    long = replace(session, name="a-very-long-name-of-an-agent", title="word " * 30)
    assert _name_lines(long, 18)[0] == "a-very-long-name-…"
    assert len(_name_lines(long, 18)) == 3


@pytest.mark.slow
def test_a_failed_call_is_selected_and_not_its_approval(tmp_path: Path) -> None:
    """A failed call that a person had approved is selected, although the approval has its ID. Requests have a turn.

    Keys reach the failures in both directions; a request that failed is one of them, and not two.
    """
    home = a_home(tmp_path)
    failed = ToolAnswer("no price", True, "failed")
    record(home, [
        start(1),
        attempt(1, 1, at=T0 + SECOND, status=529),
        attempt(1, 1, at=T0 + 2 * SECOND, content=CALL),
        permission(1, "toolu_1", at=T0 + 3 * SECOND, approval_requested=True, approval_wait_ns=SECOND),
        replace(tool(1, "toolu_1", "weather", at=T0 + 4 * SECOND), answer=failed),
        end(1, failed=True),
    ])  # fmt: skip

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "enter")
        steps: Tree[Any] = pilot.app.screen.query_one("#tree", Tree)
        assert steps.cursor_node is not None
        assert str(steps.cursor_node.label).startswith("call weather")
        assert "request claude-sonnet-5-5  turn 1" in screen(pilot)
        first = steps.cursor_line
        for key in ("n", "p"):
            await settled(pilot, key)
            assert steps.cursor_line != first
            assert "overloaded_error" in str(steps.cursor_node.label)
            await settled(pilot, key)
            assert steps.cursor_line == first
        await settled(pilot, "up")
        assert str(steps.cursor_node.label).startswith("permission weather")
        record(home, [start(2, at=T0 + 90 * SECOND), attempt(2, 1), end(2)])
        await settled(pilot, "f5")
        assert str(steps.cursor_node.label).startswith("permission weather")

    driven(home, drive)


@pytest.mark.slow
def test_new_sessions_appear(home: Home) -> None:
    """A session that is recorded meanwhile appears when the list is read again; the cursor stays on its session."""

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "down")
        record(home, [start(4, "new", at=T0 + 9 * SECOND), attempt(4, 1), end(4)])
        await settled(pilot, "f5")
        assert [row[1] for row in rows(pilot, "#sessions")][1] == "new  line 0 of session 4"
        assert pilot.app.screen.query_one("#sessions", DataTable).cursor_row == 2

    driven(home, drive)


@pytest.mark.slow
def test_the_failed_step_is_selected(home: Home) -> None:
    """An opened session begins with its failure, and keys go to the tab of the steps and to this failure.

    The cost tab shows the total by model, and the cost and tokens of each turn.
    """

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "enter")
        assert "failed: ValueError" in shown(pilot, "#banner")
        steps: Tree[Any] = pilot.app.screen.query_one("#tree", Tree)
        first = steps.cursor_line
        assert steps.cursor_node is not None
        assert "overloaded_error" in str(steps.cursor_node.label)
        assert "overloaded_error" in shown(pilot, "#detail")
        await settled(pilot, "3")
        assert shown(pilot, "#total") == "claude-sonnet-5-5: $0.0004, 2 calls"
        assert [row[:6] for row in rows(pilot, "#turns")] == [
            ["main", "1", "$0.0002", "exact", "claude-sonnet-5-5", "10"],
            ["main", "2", "$0.0002", "exact", "claude-sonnet-5-5", "10"],
        ]
        await settled(pilot, "n")
        assert pilot.app.screen.query_one(TabbedContent).active == "steps"
        assert steps.cursor_line == first
        await settled(pilot, "down", "p")
        assert steps.cursor_line == first
        await settled(pilot, "escape")
        assert len(rows(pilot, "#sessions")) == 3

    driven(home, drive)


@pytest.mark.slow
def test_keys_reach_each_failure(home: Home) -> None:
    """Keys select the next and the previous failure, and begin again at the other end."""
    rejected = [attempt(6, 1, at=T0 + at * SECOND, status=529) for at in (1, 2, 3)]
    record(home, [start(6, "rejected"), *rejected, attempt(6, 1, at=T0 + 4 * SECOND), end(6)])

    async def drive(pilot: Pilot[None]) -> None:
        steps: Tree[Any] = pilot.app.screen.query_one("#tree", Tree)
        assert isinstance(pilot.app.screen, SessionScreen)
        count = len(pilot.app.screen._failures)
        assert count >= 3
        lines = []
        for key in "n" * (count + 1) + "p" * count:
            await settled(pilot, key)
            lines.append(steps.cursor_line)
        assert len(set(lines)) == count
        assert lines[count] == lines[0]
        assert lines[count + 1 :] == lines[count - 1 :: -1]

    driven(home, drive, session_id=session_id(6))


@pytest.mark.slow
def test_content_needs_consent(home: Home) -> None:
    """Prompts, responses and tool data are on no tab before the key, and on the transcript after it, as plain text.

    Enter on a request shows its messages in the transcript.
    """

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "enter")
        for key in "1234":
            await settled(pilot, key)
            assert not {"Bern", "sunny", "not markup"} & set(re.split(r"[^\w ]", screen(pilot)))
            assert "Bern" not in screen(pilot)
        await settled(pilot, "2")
        assert "Press y to show it" in screen(pilot)
        await settled(pilot, "y")
        entries = pilot.app.screen.query_one("#entries", OptionList)
        texts = [str(entries.get_option_at_index(at).prompt) for at in range(entries.option_count)]
        assert "line 0 of session 2" in texts[0]
        assert any("calls weather" in each and "Bern" in each for each in texts)
        [hostile] = [each for each in texts if "not markup" in each]
        assert (
            "[bold red]not markup[/] \\u001b[31mno color\\u001b[0m \\u202eno direction" in hostile
        )
        await settled(pilot, "n")
        assert pilot.app.screen.query_one(TabbedContent).active == "steps"
        await settled(pilot, "enter")
        assert pilot.app.screen.query_one(TabbedContent).active == "transcript"
        assert entries.highlighted is not None
        assert "main, request 1" in str(entries.get_option_at_index(entries.highlighted).prompt)

    driven(home, drive)


@pytest.mark.slow
def test_content_that_was_not_kept_is_named(tmp_path: Path, home: Home) -> None:
    """If the content was pruned, the transcript states this, and the other tabs work."""
    main(["--home", str(home.path), "prune", "--content-only", "--session", session_id(2)])

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "enter", "2", "y")
        assert "was pruned" in shown(pilot, "#consent")
        await settled(pilot, "3")
        assert len(rows(pilot, "#turns")) == 2

    driven(home, drive)


@pytest.mark.slow
def test_the_transcript_grows_with_the_session(home: Home) -> None:
    """Messages that are recorded meanwhile appear; the selected text stays selected, and open texts stay open.

    With `--content`, the transcript of the session that is named on the command line is shown at once.
    """
    before: list[Record] = [start(5, "long", at=T0 + 9 * SECOND), attempt(5, 1, content=LONG)]
    record(home, before)

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "2")
        assert {"line 0 of session 5", "word 0"} <= set(re.split(r"\s{2,}|\n", screen(pilot)))
        entries = pilot.app.screen.query_one("#entries", OptionList)
        await settled(pilot, "down", "down", "enter")
        count = entries.option_count
        assert entries.highlighted == 1
        assert "word 29" in str(entries.get_option_at_index(1).prompt)
        record(home, [attempt(5, 2, at=T0 + 12 * SECOND), end(5)])
        await looked(pilot)
        assert entries.option_count > count
        assert entries.highlighted == 1
        assert "word 29" in str(entries.get_option_at_index(1).prompt)

    driven(home, drive, session_id=session_id(5), shows_content=True)


@pytest.mark.slow
def test_a_failed_read_is_repeated(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while reading never ends the application, and the next look reads again without new records."""
    revision, listed = SessionData.revision, SessionData.listed

    def unreadable(_: SessionData) -> Any:
        raise PermissionError(13, "not allowed")

    async def drive(pilot: Pilot[None]) -> None:
        for method, original in (("revision", revision), ("listed", listed)):
            monkeypatch.setattr(SessionData, method, unreadable)
            await settled(pilot, "f5")
            assert "cannot be read: PermissionError" in shown(pilot, "#summary")
            monkeypatch.setattr(SessionData, method, original)
            await looked(pilot)
            assert shown(pilot, "#summary") == "3 sessions, 1 failed"

    driven(home, drive)


@pytest.mark.slow
def test_nothing_is_counted_before_it_is_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the sessions are read, or if that fails, a terminal that changes its size does not show zero sessions."""

    def unreadable(_: SessionData) -> Any:
        raise PermissionError(13, "not allowed")

    monkeypatch.setattr(SessionData, "listed", unreadable)

    async def drive(pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        assert "0 sessions" not in shown(pilot, "#summary")

    driven(home, drive)


@pytest.mark.slow
def test_times_that_were_not_recorded_are_marked(tmp_path: Path) -> None:
    """The tree has an estimated time with its sign; the details say how it is known, in the words of the pages. The
    time of an imported call includes waits that are not recorded.
    """
    talk = WireConversation()
    [call] = talk.calls(("read", {}))
    talk.result(call)
    talk.says("Hm.")
    home = a_home(tmp_path)
    record(home, talk.whole())

    async def drive(pilot: Pilot[None]) -> None:
        tree: Tree[Any] = pilot.app.screen.query_one("#tree", Tree)
        nodes = [node for node in _below(tree.root) if "call read" in str(node.label)]
        assert [str(node.label).split("  ")[-1] for node in nodes] == ["≈ 500 ms"]
        tree.move_cursor(nodes[0])
        await settled(pilot)
        assert f"≈ 500 ms, {ESTIMATED_TIMES}" in shown(pilot, "#detail")

    driven(home, drive, session_id=talk.session_id)
    call_facts = {"duration_ns": SECOND, "estimated_ns": None}
    node = Node("1", "tool_call", "call read", "", call_facts)
    assert f"1.00 s, {UNSEEN_WAITS}" in _details(node, [], is_imported=True).plain
    assert UNSEEN_WAITS not in _details(node, [], is_imported=False).plain


@pytest.mark.slow
def test_a_cost_that_is_not_exact_is_marked(recorded_once: Home) -> None:
    """The banner marks the cost of a session as the tables do."""
    view = SessionData(recorded_once).session(session_id(2))
    assert _cost(view) == "$0.0004"
    assert _cost(replace(view, cost_status="lower_bound")) == "at least $0.0004"
    assert _cost(replace(view, cost_status="estimated")) == "about $0.0004"
    assert _cost(replace(view, about={**view.about, "cost_usd": None})) == "unknown cost"


@pytest.mark.slow
def test_waste_is_named_in_the_words_of_show(recorded_once: Home) -> None:
    view = SessionData(recorded_once).session(session_id(1))
    with open_store(recorded_once) as store:
        expected = [each.words for each in session_waste(stored_rows(store, session_id(1)))]
    assert [each.words for each in view.waste] == expected
    found = Waste("misses", Decimal("0.2"), "about $0.2000", "1 cache miss (expired)")
    assert list(_totals(replace(view, models=[], waste=[found]))) == [
        "wasted: about $0.2000 on 1 cache miss (expired)"
    ]


@pytest.mark.slow
def test_a_long_title_leaves_room_for_the_numbers(recorded_once: Home) -> None:
    """The title takes one line of the banner, so that even a small screen shows the numbers of the session."""
    view = replace(SessionData(recorded_once).session(session_id(1)), title="a long title " * 40)
    lines = _banner(view, 78).plain.split("\n")
    assert len(lines[0]) == 78
    assert lines[0].endswith("…")
    assert lines[2].startswith("1 turn, 1 request, 0 tool calls, $0.0002, ")


def test_a_lane_has_no_control_characters() -> None:
    """A lane of a recording from elsewhere is printed without escape sequences."""
    entry = Entry("a", "\x1b[31mlane", 1, "user", "user", "text")
    assert "\x1b" not in _prompt(entry, {}, is_open=True).plain


@pytest.mark.slow
def test_stepping_through_a_recording(home: Home) -> None:
    """Steps appear one by one in both directions, with the cost so far, and playing shows all of them."""

    async def drive(pilot: Pilot[None]) -> None:
        await settled(pilot, "enter", "4")
        assert [row[3] for row in rows(pilot, "#played-steps")] == ["request claude-sonnet-5-5"]
        await settled(pilot, "right", "right")
        assert len(rows(pilot, "#played-steps")) == 3
        assert "step 3 of 5, 1.00 s after the start, $0.0002 so far" in shown(pilot, "#position")
        await settled(pilot, "left")
        assert len(rows(pilot, "#played-steps")) == 2
        await settled(pilot, "plus", "plus")
        assert "4x recorded pace, stopped" in shown(pilot, "#position")
        await settled(pilot, "0")
        assert "one step per second" in shown(pilot, "#position")
        await settled(pilot, "r", *["plus"] * len(SPEEDS), "space")
        pane = pilot.app.screen.query_one(PlaybackPane)
        while not pane.playback.is_at_end:  # at 64 times the recorded pace of 5 s
            await pilot.pause(0.01)
        assert rows(pilot, "#played-steps")[0][4].startswith("http_error")
        assert "step 5 of 5" in shown(pilot, "#position")
        assert "end]" in shown(pilot, "#position")

    driven(home, drive)


def test_a_terminal_is_needed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, the command states what to use instead."""
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home.path), "tui"])
    assert ended.value.code == 1
    assert "this command needs a terminal. `agentobs sessions` and" in capsys.readouterr().err


def test_a_missing_package_is_named(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Textual, the command names the package and the command that installs it."""
    monkeypatch.setitem(sys.modules, "textual", None)
    for name in [name for name in sys.modules if name.startswith("agentobs.cli.tui.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home.path), "tui"])
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert "tui: the package textual is not installed. Install what tui needs: pip install" in shown
    assert "tui]" in shown


@pytest.mark.slow
def test_an_unknown_session_is_one_error(home: Home) -> None:
    """A session that does not exist is reported before the application starts."""
    ended = on_terminal(home.path, "tui", "nobody")
    assert ended.code == 1
    assert ended.lines[0].startswith("error: nobody: no session with that ID or name")


# Playback

times = st.lists(st.integers(0, 10**12), min_size=1, max_size=9).map(sorted)


@given(times, st.sampled_from(SPEEDS))
def test_the_recorded_pace_is_kept(times_ns: list[int], speed: float) -> None:
    """The delays before the steps add up to the recorded time, divided by the speed."""
    playback = Playback(times_ns, speed=speed).toggled().forward()
    total = 0.0
    while not playback.is_at_end:
        total += playback.delay_seconds
        playback = playback.forward()
    assert total == pytest.approx((times_ns[-1] - times_ns[0]) / 1e9 / speed)
    assert playback.elapsed_ns == times_ns[-1] - times_ns[0]
    assert not playback.is_playing


def test_the_pace_can_be_chosen() -> None:
    """Faster and slower take the next speed within the limits, and a fixed pace does not depend on the recording."""
    playback = Playback([0, 10**12]).forward()
    assert (playback.at_fixed_pace().delay_seconds, playback.delay_seconds) == (1.0, 1000.0)
    assert (playback.faster().speed, playback.slower().speed) == (2.0, 0.5)
    for _ in SPEEDS:
        playback = playback.faster()
    assert playback.speed == SPEEDS[-1]
    assert playback.at_recorded_pace().pace == "recorded pace"
    assert playback.forward().toggled() == replace(playback, position=0, is_playing=True)


def test_nothing_to_play() -> None:
    """A session without steps can be played, and nothing happens."""
    playback = Playback(()).toggled().forward().back()
    assert (playback.position, playback.delay_seconds, playback.is_playing) == (0, 0.0, False)


# Order and tree

DAY = 86_400 * 10**9


def test_attention_first(tmp_path: Path) -> None:
    """The order is that of the dashboard: failed sessions by day, those with signatures, and others; each by cost.

    A failed session of unknown cost is the first of its day, and the newest of equal costs is first.
    """
    home = a_home(tmp_path)
    sessions = [
        ("old", "completed", 9, 0, 1), ("new", "completed", 0, 0, 5), ("cheap", "completed", 1, 2, 1),
        ("dear", "completed", 8, 1, 1), ("running", "running", 0, 0, 6), ("unpriced", "crashed", None, 0, DAY),
        ("failed", "failed", 4, 0, DAY), ("yesterday", "failed", 90, 0, DAY - 1), ("tonight", "failed", 1, 0, 2 * DAY),
        ("later", "failed", 4, 0, DAY + 1), ("unknown", "completed", None, 0, 9),
    ]  # fmt: skip
    names, statuses, costs, signatures, starts = zip(*sessions, strict=True)
    with open_store(home) as store:
        order = store.rows(
            "internal/by_attention", session_ids=list(names), statuses=list(statuses), costs=list(costs),
            signatures=list(signatures), starts=list(starts),
        )  # fmt: skip
    assert [name for (name,) in order.rows] == [
        "tonight", "unpriced", "later", "failed", "yesterday", "dear", "cheap", "old", "running", "new", "unknown",
    ]  # fmt: skip


def test_each_request_is_one_step() -> None:
    """An attempt takes the place of the span of its request; a request without an attempt keeps its span."""

    def row(
        id: str, depth: int, kind: str, name: str, label: str | None, parent: str | None
    ) -> Any:
        return {"id": id, "depth": depth, "kind": kind, "name": name, "label": label, "parent_id": parent,
                "outcome": "ok", "error_type": None, "duration_ns": 1}  # fmt: skip

    roots = tree([
        row("turns", 0, "span", "interaction", "main", None),
        row("request_1", 1, "span", "llm_request", "claude", "turns"),
        row("attempt_1", 2, "attempt", "/v1/messages", "claude", "request_1"),
        row("call_1", 2, "tool_call", "weather", None, None),
        row("run_1", 2, "span", "execution", "weather", "request_1"),
        row("request_2", 1, "span", "llm_request", "claude", "turns"),
    ])  # fmt: skip
    [top] = roots
    assert [(each.text, [child.text for child in each.children]) for each in top.children] == [
        ("request claude", ["call weather"]), ("request claude", []),
    ]  # fmt: skip


def test_rows_become_a_tree() -> None:
    """Rows are below the last row of a smaller depth, and a step above a failed one is marked."""

    def row(
        id: str, depth: int, outcome: str = "ok", kind: str = "attempt", name: str = "x"
    ) -> Any:
        return {"id": id, "depth": depth, "outcome": outcome, "kind": kind, "name": name, "label": None,
                "error_type": None, "duration_ns": 1, "parent_id": None}  # fmt: skip

    roots = tree([row("a", 0), row("b", 1), row("c", 3, "failed"), row("d", 1), row("e", 0),
                  row("f", 1, kind="span", name="tool")])  # fmt: skip
    assert [(each.id, each.has_failed_step, [child.id for child in each.children]) for each in roots] == [
        ("a", True, ["b", "d"]), ("e", False, []),
    ]  # fmt: skip
    assert [child.id for child in roots[0].children[0].children] == ["c"]

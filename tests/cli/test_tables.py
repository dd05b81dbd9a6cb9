"""Tables on a terminal and in a pipe: what fits, what is left out, and what is never cut."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import agentobs
from agentobs.cli import main
from agentobs.cli.inspection.sessions import UNSEARCHED
from agentobs.cli.terminal.table_layout import GAP, Column, fit
from agentobs.cli.terminal.tables import print_table
from agentobs.records.exchanges import Answer, Chunk
from agentobs.store import session_lookup
from agentobs.store.backend import open_store
from agentobs.store.session_lookup import find_session, shortest_prefixes
from tests.cli.pseudo_terminal import on_terminal, program_on_terminal
from tests.cli.test_commands import Shell
from tests.store.recordings import a_home, attempt, end, record, session_id, start

HEADINGS = ("session id", "name", "title", "status", "started (UTC)", "turns", "cache read", "cost")
KEYS = ("session_id", "name", "title", "status", "started_ns", "turns", "cache_read_tokens", "cost_usd")  # fmt: skip
ROWS: Sequence[Sequence[Any]] = [
    (f"{number:032x}", "refund-loop", "My parcel never came, please refund me now " * 2, status,
     "2020-11-26 15:24:30", 3, 4_470_123, f"${number},010.4571")
    for number, status in enumerate(("failed", "completed", "running"), 1)
]  # fmt: skip


def printed(
    width: int | None, *, rows: Sequence[Sequence[Any]] = ROWS, whole: bool = False, **options: Any
) -> str:
    """Print the table on a terminal of this width, or into a pipe."""
    file = io.StringIO()
    terminal = Console(
        file=file, width=width or 100_000, force_terminal=width is not None, color_system="standard" if width else None,
        markup=False, emoji=False, highlight=False, legacy_windows=False, **options,
    )  # fmt: skip
    ids = {str(row[0]): str(row[0])[:8] for row in rows}
    print_table(terminal, HEADINGS, rows, keys=KEYS, ids=ids, whole=whole)
    return file.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


columns = st.builds(
    lambda priority, least, more: Column(priority, least, least + more),
    st.integers(1, 9), st.integers(1, 30), st.integers(0, 50),
)  # fmt: skip


@given(st.lists(columns, min_size=1, max_size=12), st.integers(20, 200))
def test_a_layout_fits_and_never_cuts_below_the_minimum(layout: list[Column], width: int) -> None:
    """Shown columns fit together, each between its minimum and its natural width; one column is always shown."""
    widths = fit(layout, width)
    assert widths
    assert list(widths) == sorted(widths)
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= width
    for at, each in widths.items():
        assert (
            min(layout[at].least, width)
            <= each
            <= max(layout[at].natural, each * (len(widths) == 1))
        )


@given(st.lists(columns, min_size=1, max_size=12), st.integers(20, 200))
def test_a_column_that_is_left_out_does_not_fit(layout: list[Column], width: int) -> None:
    """A column is left out only if it does not fit next to the shown columns of the same or a higher priority."""
    widths = fit(layout, width)
    for at, column in enumerate(layout):
        if at in widths:
            continue
        ahead = [layout[i].least for i in widths if (layout[i].priority, i) < (column.priority, at)]
        assert sum(ahead) + GAP * len(ahead) + column.least > width


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160, 300])
def test_a_table_fits_the_terminal(width: int) -> None:
    """No line is longer than the terminal is wide, and numbers, times and IDs are whole or left out."""
    lines = plain(printed(width)).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    body = [line for line in lines if line.startswith("0000")]
    assert len(body) == len(ROWS)
    for number, line in enumerate(body, 1):
        assert line.split()[0] == "00000000"
        assert f"${number},010.4571" in line
        digits = re.findall(r"[\d,]*\d[\d,]*", line.split("$")[0][8:])
        assert set(digits) <= {"3", "4,470,123", "2020", "11", "26", "15", "24", "30"}
    left_out = [
        name for name in HEADINGS if not set(name.split()) & set(" ".join(lines[:3]).split())
    ]
    assert all(name in " ".join(" ".join(lines).split()) for name in left_out)


def test_a_cause_has_two_lines_and_leaves_room_for_the_duration() -> None:
    """In a list of sessions at 120 columns, a long cause is cut after two lines, and the duration is shown."""
    cause = (
        "ValueError in issue_refund at refund_agent.py:39; declared by the agent: refund-not-issued"
    )
    columns = [
        "session_id", "name", "title", "status", "cause", "started_ns", "duration_ns", "turns", "cost_usd",
    ]  # fmt: skip
    values = [
        "01a221b8", "invoice-report", "My parcel for order A-17 never arrived", "completed", cause, "11-28 10:34",
        "17 min 45 s", "12", "≥ $0.0104",
    ]  # fmt: skip
    file = io.StringIO()
    terminal = Console(file=file, width=120, force_terminal=True, legacy_windows=False)
    headings = [name.removesuffix("_ns").removesuffix("_usd") for name in columns]
    rows = [values, [*values[:4], "one line", *values[5:]]]
    print_table(terminal, headings, rows, keys=columns)
    lines = [line.rstrip() for line in plain(file.getvalue()).splitlines()]
    at = next(at for at, line in enumerate(lines) if "ValueError in" in line)
    assert "17 min 45 s" in lines[at]
    assert lines[at + 1].split()[0] == "issue_refund"
    assert lines[at + 1].endswith("…")
    assert " one line " in lines[at + 2]


def test_a_pipe_gets_whole_values() -> None:
    """Without a terminal, each row is one line with all columns and full IDs, without escape sequences."""
    lines = printed(None).splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert "\x1b" not in "".join(lines)
    for row, line in zip(ROWS, lines[1:], strict=True):
        assert all(str(cell) in line for cell in (row[0], row[2], row[4], row[7], "4,470,123"))


def test_states_have_colors_unless_they_are_unwanted() -> None:
    """A failed session is red on a terminal. With NO_COLOR, no color is used."""
    assert "\x1b[31mfailed" in printed(80)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", printed(80, no_color=True))


def test_a_lane_keeps_its_end() -> None:
    """Lanes of sub-agents differ at their end, so a lane is cut at its start."""
    file = io.StringIO()
    terminal = Console(file=file, width=60, force_terminal=True, color_system=None)
    lanes = ["main", *(f"main/toolu_0123456789abcdef01234567{end}" for end in ("AA", "BB"))]
    rows = [(lane, 1, "x" * 60) for lane in lanes]
    print_table(terminal, ("lane", "turn", "detail"), rows)
    shown = [line.split()[0] for line in plain(file.getvalue()).splitlines() if " 1 " in line]
    assert [lane[-2:] for lane in shown] == ["in", "AA", "BB"]
    assert [lane[0] for lane in shown] == ["m", "…", "…"]


def test_a_result_of_sql_is_never_left_out() -> None:
    """A result that does not fit becomes one block per row, which contains each value as a whole."""
    shown = plain(printed(60, whole=True))
    blocks = re.split(r"row \d\n", shown)[1:]
    assert len(blocks) == len(ROWS)
    for row, block in zip(ROWS, blocks, strict=True):
        words = "".join(block.split())
        assert all("".join(str(cell).split()) in words for cell in (*row[2:6], row[7]))
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 60


def test_short_ids_are_prefixes_of_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short ID is as long as it must be to find only its session, and has at least the readable length."""
    home = a_home(tmp_path)
    for number in (1, 2, 0x21, 0x210):
        record(home, [start(number), end(number)])
    ids = [session_id(number) for number in (1, 2, 0x21, 0x210)]
    with open_store(home) as store:
        short = shortest_prefixes(store, ids)
        assert [find_session(store, short[each]) for each in ids] == ids
        assert [short[each] for each in ids] == [each[:8] for each in ids]
        monkeypatch.setattr(session_lookup, "READABLE", 1)
        short = shortest_prefixes(store, ids)
        assert [find_session(store, short[each]) for each in ids] == ids
        assert [len(short[each]) for each in ids] == [8, 8, 7, 6]


COMMANDS = (
    ("sessions",), ("sessions", "--failed"), ("show", "refund-loop"), ("cost",), ("cost", "--detail"),
    ("cost", "--by", "session"), ("cost", "--by", "agent"), ("cost", "--by", "day"), ("cache",), ("tools",),
    ("models",),
    ("waits",), ("lines",), ("limits",), ("orphans",), ("time", "refund-loop"), ("diagnose", "--all"), ("reprice",),
    ("sql", "SELECT * FROM attempts"),
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a failed session and a completed one."""
    home = a_home(tmp_path_factory.mktemp("tables"))
    record(home, [
        start(1, "refund-loop"), attempt(1, 1, cache_creation_input_tokens=1_234_567),
        attempt(1, 2, cache_read_input_tokens=1_234_567), end(1, failed=True),
    ])  # fmt: skip
    record(
        home,
        [start(2, "a-much-longer-name-of-an-agent-that-somebody-chose"), attempt(2, 1), end(2)],
    )
    return home.path


RUN_ALL = """
import sys
from agentobs.cli import main

home, end, *commands = sys.argv[1:]
for command in commands:
    code = 0
    try:
        main(["--home", home, *command.split("|")])
    except SystemExit as ended:
        code = ended.code or 0
    print(f"{end} {code}", flush=True)
"""
END = "-- end of a command, with the exit code"


@pytest.fixture(scope="module")
def outputs(home: Path) -> dict[tuple[str, ...], tuple[int, list[str]]]:
    """The exit code and the lines of each command; all commands run in one process on a terminal of 80 columns."""
    commands = ["|".join(arguments) for arguments in COMMANDS]
    command = [sys.executable, "-c", RUN_ALL, str(home), END, *commands]
    shown = program_on_terminal(command)
    found, lines = [], list[str]()
    for line in shown.lines:
        if line.startswith(END):
            found.append((int(line.removeprefix(END)), lines))
            lines = []
        else:
            lines.append(line)
    return dict(zip(COMMANDS, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_line_of_a_command_is_longer_than_80_columns(
    outputs: dict[tuple[str, ...], tuple[int, list[str]]], arguments: tuple[str, ...]
) -> None:
    """Each table fits a terminal of 80 columns. Notes are prose, which the terminal wraps."""
    code, lines = outputs[arguments]
    assert code == 0
    tables = [line for line in lines if not line.startswith("estimated from wire timing")]
    assert 0 < max(len(line) for line in tables) <= 80
    assert not any("Traceback" in line for line in lines)


@pytest.mark.slow
def test_the_money_of_a_session_stands_in_a_narrow_list(home: Path) -> None:
    """With 80 columns, the list of sessions has a short ID, the status and the cost of each session."""
    spent = agentobs.query(
        "SELECT cost_usd FROM sessions ORDER BY started_ns DESC, session_id", home=home
    )
    # A long cause is wrapped, so a session can have several lines.
    lines = on_terminal(home, "sessions").lines
    rows = [line for line in lines if re.match(r"[0-9a-f]{8,32} ", line)]
    for (cost,), line in zip(spent, rows, strict=True):
        assert line.endswith(f"${Decimal(cost):,.4f}")
        assert re.search(r" (failed|completed) ", line)


@pytest.mark.slow
def test_a_list_says_on_a_terminal_how_many_sessions_failed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the list on a terminal, one line has the number of failed sessions and the option that lists them first.
    With that option, with `--failed` and in a pipe, there is no such line.
    """
    hint = "1 session failed, crashed or has no end; --attention lists it first"
    lines = on_terminal(home, "sessions").lines
    assert hint in lines
    assert UNSEARCHED in lines
    for option in ("--attention", "--failed"):
        assert not any(hint in line for line in on_terminal(home, "sessions", option).lines)
    main(["--home", str(home), "sessions"])
    assert "--attention lists" not in "".join(capsys.readouterr())


@pytest.mark.slow
def test_the_hint_names_all_ways_to_fail(tmp_path: Path) -> None:
    """The hint counts the sessions that `--failed` lists: failed ones and those without an end, not only the shown."""
    home = a_home(tmp_path)
    record(home, [start(1, "broken"), attempt(1, 1), end(1, failed=True)])
    record(home, [start(2, "open"), attempt(2, 1)])
    record(home, [start(3, "clean"), attempt(3, 1), end(3)])
    lines = on_terminal(home.path, "sessions", "--limit", "1").lines
    hint = "2 sessions failed, crashed or have no end; --attention lists them first"
    assert any(line.startswith(hint) for line in lines)


@pytest.mark.slow
def test_a_list_without_failed_sessions_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sessions --failed` without a failed session prints that no session matches, and no hint about failures."""
    home = a_home(tmp_path)
    record(home, [start(1, "clean"), attempt(1, 1), end(1)])
    shell = Shell(home.path, capsys)
    assert shell("sessions", "--failed").err.strip() == "no session matches"
    assert not any("failed" in line for line in on_terminal(home.path, "sessions").lines)


def test_a_pipe_ignores_the_variable_columns(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table in a pipe is never cut, because programs read it; the help states this."""
    main(["--home", str(home), "sessions"])
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    main(["--home", str(home), "sessions"])
    assert capsys.readouterr().out == whole
    assert max(map(len, whole.splitlines())) > 60
    for command in ("sessions", "cache"):
        main([command, "--help"])
        assert "whatever COLUMNS is" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_times_are_local_and_the_zone_is_named_once(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heading names the zone, and times are in it. A time that is typed without an offset is also in this zone."""
    monkeypatch.setenv("TZ", "<+05>-5")
    time_tzset()
    try:
        main(["--home", str(home), "show", "refund-loop", "--facts"])
        shown = capsys.readouterr().out
        [started] = re.findall(r"started \(\+05\) +(\S+ \S+)", shown)
        for since, count in ((started, 1), (f"{started}+00:00", 0)):
            main(
                [
                    "--home",
                    str(home),
                    "cost",
                    "--session",
                    "refund-loop",
                    "--json",
                    "--since",
                    since,
                ]
            )
            assert len(capsys.readouterr().out.splitlines()) == count
    finally:
        monkeypatch.undo()
        time_tzset()


def time_tzset() -> None:
    """Apply the variable TZ."""
    import time

    time.tzset()


@pytest.mark.slow
def test_long_facts_are_wrapped_below_their_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, a long value is wrapped between words, below its beginning. In a pipe, it is one line."""
    home = a_home(tmp_path)
    record(home, [start(1, "word " * 20), attempt(1, 1), end(1)])
    lines = on_terminal(home.path, "show", session_id(1), "--facts").lines
    at = next(at for at, line in enumerate(lines) if line.startswith("name "))
    assert lines[at + 1].startswith(f"{'':21}word")
    assert max(map(len, lines)) <= 80
    main(["--home", str(home.path), "show", session_id(1), "--facts"])
    assert f"{'name':<21}{'word ' * 20}".rstrip() in capsys.readouterr().out


@pytest.mark.slow
def test_the_cost_of_a_session_that_is_not_exact_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A session with a response that ended early has a cost that is a lower bound, in `show` and in the list."""
    home = a_home(tmp_path)
    whole = attempt(1, 1)
    events = (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
        b'"role":"assistant","model":"claude-sonnet-5-5","content":[],"usage":{"input_tokens":10,"output_tokens":1}}}\n\n'
    )
    answer = Answer(200, {"content-type": "text/event-stream"}, (Chunk(events, 2_000_000),), "cut")
    record(home, [start(1), replace(whole, answer=answer), end(1)])
    record(home, [start(2), attempt(2, 1), end(2)])
    main(["--home", str(home.path), "show", session_id(1), "--facts"])
    assert re.search(r"^cost +at least \$0\.\d+$", capsys.readouterr().out, re.MULTILINE)
    main(["--home", str(home.path), "sessions"])
    for line in capsys.readouterr().out.splitlines()[2:]:
        assert ("≥ $0." in line) == line.startswith(session_id(1)), line
    cells = "\n".join(on_terminal(home.path, "sessions").lines)
    assert re.search(r" ≥ \$0\.\d+ *$", cells, re.MULTILINE)
    main(["--home", str(home.path), "sessions", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["session_id"]: row["cost_status"] for row in rows} == {
        session_id(1): "lower_bound", session_id(2): "exact",
    }  # fmt: skip

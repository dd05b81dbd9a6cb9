"""The full-screen application: the list of sessions, and one screen for each session that is opened."""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from agentobs.cli.terminal.instants import local_instant, zone_name
from agentobs.cli.terminal.tables import STYLES
from agentobs.cli.tui.background import read_and_show
from agentobs.cli.tui.session_data import FAILED, Listed, SessionData
from agentobs.cli.tui.session_screen import SessionScreen
from agentobs.records.display import COST_SIGNS, certain_money, printable

REFRESH_SECONDS = 2.0
"""The pause between two checks for new records. Our choice: a turn of an agent takes seconds."""
MOST_CAUSE_LINES = 5
"""The maximum number of lines of a cause in the list. Our choice: enough for a sentence on a narrow terminal."""
MOST_TITLE_LINES = 2
"""The maximum number of lines of a title in the list. Our choice."""
NARROW = 100
"""The width of a terminal below which the list shows times without the year. Our choice."""
KEYS = """\
List of sessions
  Enter      open the session
  /          filter by name, title, cause or status; Escape removes it
  F5         read again; new records are read every two seconds

Session
  1 2 3 4    steps, transcript, cost, playback
  n  p       next and previous failure
  Enter      open a request in the transcript; show the whole text
  y          show prompts, responses and tool data from now on
  Escape     back to the list

Playback
  Space      start or stop
  Right Left one step forward or back
  + -        faster, slower
  0          one step per second
  r          recorded pace

q            quit
"""


class Browser(App[None]):
    """The application."""

    TITLE = "agentobs"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary, #banner { height: auto; max-height: 5; padding: 0 1; }
    #banner { max-height: 7; }
    #banner { background: $boost; }
    DataTable { height: 1fr; }
    #filter { display: none; }
    #filter.shown { display: block; }
    #details, #played { height: 9; border-top: solid $primary; padding: 0 1; }
    #consent { padding: 1 2; }
    Tree, OptionList, TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    TabPane { padding: 0; }
    OptionList { border: none; }
    Help { align: center middle; }
    #keys { width: auto; height: auto; border: solid $primary; padding: 0 2; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
    ]

    def __init__(
        self, data: SessionData, *, session_id: str | None = None, shows_content: bool = False
    ) -> None:
        """Show the list of sessions, or one session.

        Args:
            data: the source of everything that is shown.
            session_id: the session to open.
            shows_content: whether content is shown without asking.
        """
        super().__init__()
        self.data = data
        self.shows_content = shows_content
        self._session_id = session_id

    def on_mount(self) -> None:
        """Open the first screen."""
        self.push_screen(SessionList(self.data))
        if self._session_id is not None:
            self.open_session(self._session_id)

    def open_session(self, session_id: str) -> None:
        """Open the screen of a session."""
        self.push_screen(SessionScreen(self.data, session_id))

    def action_keys(self) -> None:
        """Show the keys."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help())


class Help(ModalScreen[None]):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter", "dismiss", "Close")
    ]

    def compose(self) -> ComposeResult:
        """Show the list of keys."""
        yield Static(Text(KEYS), id="keys")


class SessionList(Screen[None]):
    """The list of sessions, those that need attention first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "clear", "Remove the filter", show=False),
        Binding("f5", "reload", "Read again", show=False),
    ]

    def __init__(self, data: SessionData) -> None:
        """Show nothing yet."""
        super().__init__()
        self._data = data
        self._sessions: list[Listed] | None = None
        self._revision: object = None
        self._is_reading = False

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static("reading the sessions", id="summary", markup=False)
        yield Input(placeholder="text in name, title, cause or status", id="filter")
        yield DataTable[Text](cursor_type="row", zebra_stripes=True, id="sessions")
        yield Footer()

    def on_mount(self) -> None:
        """Read the sessions, and again when something was recorded."""
        self.query_one("#sessions", DataTable).focus()
        self._look()
        self.set_interval(REFRESH_SECONDS, self._look)

    def on_resize(self) -> None:
        """Fit the columns to the width."""
        self._show()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected session."""
        app = self.app
        if isinstance(app, Browser) and event.row_key.value is not None:
            app.open_session(event.row_key.value)

    def on_input_changed(self) -> None:
        """Apply the filter."""
        self._show()

    def on_input_submitted(self) -> None:
        """Return to the list."""
        self.query_one("#sessions", DataTable).focus()

    def action_filter(self) -> None:
        """Show the field of the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def action_reload(self) -> None:
        """Read the sessions again."""
        self._revision = None
        self._look()

    def action_clear(self) -> None:
        """Remove the filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("shown")
        self.query_one("#sessions", DataTable).focus()

    def _look(self) -> None:
        """Read the sessions if something was recorded. The next check does not interrupt a slow read."""
        if not self._is_reading:
            self._is_reading = True
            self._read()

    @work(thread=True)
    def _read(self) -> None:
        def read() -> list[Listed] | None:
            revision = self._data.revision()
            if revision == self._revision:
                return None
            listed = self._data.listed()
            self._revision = revision
            return listed

        try:
            read_and_show(self, read, self._received, self._show_error)
        finally:
            self._is_reading = False

    def _received(self, sessions: list[Listed] | None) -> None:
        if sessions is not None:
            self._sessions = sessions
            self._show()

    def _show_error(self, error: str) -> None:
        self._revision = None  # the next check reads again
        self.query_one("#summary", Static).update(Text(error, style="red"))

    def _show(self) -> None:
        """Show the sessions that match the filter; the cursor stays on its session."""
        if not self.is_mounted or self._sessions is None:
            return
        table: DataTable[Text] = self.query_one("#sessions", DataTable)
        current = self._selected(table)
        wanted = self.query_one("#filter", Input).value.casefold()
        shown = [each for each in self._sessions if wanted in _words(each)]
        time = 11 if self.size.width < NARROW else 16
        title, why = _text_widths(self.size.width, time)
        table.clear(columns=True)
        headings = ("status", "session", "why", f"started ({zone_name()})", "cost")
        for heading, width in zip(headings, (10, title, why, time, 9), strict=True):
            table.add_column(Text(heading), width=width)
        for each in shown:
            cells = _cells(each, title, why, time)
            height = 1 + max(cell.plain.count("\n") for cell in cells)
            table.add_row(*cells, height=height, key=each.session_id)
        keys = [each.session_id for each in shown]
        if current in keys:
            table.move_cursor(row=keys.index(current))
        failed = sum(each.status in FAILED for each in shown)
        noun = "session" if len(shown) == 1 else "sessions"
        self.query_one("#summary", Static).update(Text(f"{len(shown):,} {noun}, {failed:,} failed"))

    def _selected(self, table: DataTable[Text]) -> str | None:
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value


def _words(session: Listed) -> str:
    parts = (session.session_id, session.name, session.title, session.status, session.why)
    return "\n".join(parts).casefold()


def _text_widths(width: int, time: int) -> tuple[int, int]:
    """Return the widths of the title and of the cause, which share the width that the other columns leave."""
    left = max(width - 10 - time - 11 - 2 * 5 - 2, 24)
    return left - left // 2, left // 2


def _name_lines(session: Listed, width: int) -> list[str]:
    """Return the name and the title of a session, in one line if they fit. Titles often differ only at their
    ends, so a long title has two lines.
    """
    name, title = printable(session.name or session.session_id), printable(session.title)
    if len(name) + len(title) + 2 <= width:
        return [f"{name}  {title}".rstrip()]
    return [
        name if len(name) <= width else f"{name[: width - 1]}…",
        *wrap(title, width, max_lines=MOST_TITLE_LINES, placeholder=" …"),
    ]


def _cells(session: Listed, title: int, why: int, time: int) -> list[Text]:
    """Return the cells of a session, given the widths of its title, its cause and its time."""
    cause = "\n".join(
        wrap(printable(session.why), why, max_lines=MOST_CAUSE_LINES, placeholder=" …")
    )
    cost = certain_money(session.cost_usd, session.cost_status, COST_SIGNS)
    return [
        Text(session.status, style=STYLES.get(session.status, "")),
        Text("\n".join(_name_lines(session, title))),
        Text(cause),
        Text(str(local_instant(session.started_ns))[16 - time : 16]),
        Text(cost or "-", justify="right"),
    ]

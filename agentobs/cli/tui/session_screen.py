"""The screen of one session: its failure, and its steps, transcript, cost and playback in tabs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, OptionList, Static, TabbedContent, TabPane, Tree
from textual.widgets.option_list import Option
from textual.widgets.tree import TreeNode

from agentobs.cli.terminal.instants import local_instant
from agentobs.cli.terminal.query_output import heading
from agentobs.cli.terminal.tables import STYLES
from agentobs.cli.terminal.transcript import Entry, transcript
from agentobs.cli.tui.background import read_and_show
from agentobs.cli.tui.playback_pane import PlaybackPane
from agentobs.cli.tui.session_data import Node, SessionData, SessionView
from agentobs.records.display import (
    COST_SIGNS,
    certain_money,
    estimated,
    has_partial_counts,
    money,
    pretty,
    printable,
    seconds,
    text,
)
from agentobs.records.words import COST_STATUSES, ESTIMATED_TIMES, UNSEEN_WAITS
from agentobs.store.analysis.failed_steps import (
    call_notes,
    failures_by_way,
    number_denied,
    number_failed,
)
from agentobs.store.analysis.lane_names import name_of_lane
from agentobs.store.analysis.waste import waste_facts

FOLDED_LINES = 8
"""The maximum number of lines of a text that are shown before it is opened. Our choice; thinking is folded to one
line.
"""
CONSENT = (
    "The transcript contains prompts, responses and tool data, which may contain the input of users.\n\n"
    "Press y to show it, here and for all sessions, until this program ends."
)
_MONEY = (
    "lane", "turn", "cost_usd", "cost_status", "model", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens",
)  # fmt: skip
_COLORS = {
    "user": "cyan",
    "model": "green",
    "thinking": "dim",
    "call": "magenta",
    "result": "blue",
    "error": "red",
}
_FOCUSED = {
    "steps": "#tree",
    "transcript": "#entries",
    "cost": "#turns",
    "playback": "#played-steps",
}
"""The tabs, and the list in each of them that has the focus."""
REFRESH_SECONDS = 2.0
"""The pause between two checks for new records of the session. Our choice: a turn takes seconds."""


class SessionScreen(Screen[None]):
    """One session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "List"),
        Binding("n", "failure(1)", "Next failure"),
        Binding("p", "failure(-1)", "Previous failure"),
        Binding("y", "consent", "Show content"),
        *(
            Binding(str(number), f"tab('{name}')", name.capitalize(), show=False)
            for number, name in enumerate(_FOCUSED, 1)
        ),
    ]

    def __init__(self, data: SessionData, session_id: str) -> None:
        """Show nothing yet."""
        super().__init__()
        self._data, self._session_id = data, session_id
        self._failures: list[TreeNode[Node]] = []
        self._entries: list[Entry] = []
        self._opened: set[Entry] = set()
        self._agents: Mapping[str, str] = {}
        self._revision: object = None
        self._content_revision: object = None
        self._is_shown = False
        self._is_imported = False
        self._is_reading = False
        self._is_reading_content = False

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static("reading the session", id="banner", markup=False)
        with TabbedContent(initial="steps"):
            with TabPane("1 Steps", id="steps"):
                yield Tree[Node]("session", id="tree")
                with VerticalScroll(id="details"):
                    yield Static(id="detail", markup=False)
            with TabPane("2 Transcript", id="transcript"):
                yield Static(CONSENT, id="consent", markup=False)
                yield OptionList(id="entries", markup=False)
            with TabPane("3 Cost", id="cost"):
                yield Static(id="total", markup=False)
                yield DataTable[Text](cursor_type="row", id="turns")
            with TabPane("4 Playback", id="playback"):
                yield PlaybackPane()
        yield Footer()

    def on_mount(self) -> None:
        """Read the session."""
        self.query_one("#entries").display = False
        tree = self.query_one(Tree)
        tree.show_root = False
        tree.focus()
        self._look()
        self.set_interval(REFRESH_SECONDS, self._look)

    @property
    def _has_consent(self) -> bool:
        return bool(getattr(self.app, "shows_content", False))

    def action_tab(self, name: str) -> None:
        """Show a tab, and give its first list the focus."""
        self.query_one(TabbedContent).active = name
        self.query_one(_FOCUSED[name]).focus()

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Give the first list of a tab the focus, so that its keys work."""
        if event.pane.id in _FOCUSED:
            self.query_one(_FOCUSED[event.pane.id]).focus()

    def action_failure(self, direction: int) -> None:
        """Select the next or the previous step that failed."""
        if not self._failures:
            self.notify("no step failed" if self._is_shown else "the session is still being read")
            return
        self.action_tab("steps")
        tree: Tree[Node] = self.query_one("#tree", Tree)
        lines = sorted(node.line for node in self._failures)
        after = [line for line in lines if (line - tree.cursor_line) * direction > 0]
        line = (after or lines)[0] if direction > 0 else (after or lines)[-1]
        tree.move_cursor_to_line(line)

    def action_consent(self) -> None:
        """Show content from now on."""
        if not self._has_consent:
            self.app.shows_content = True  # type: ignore[attr-defined]
            self._look()

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Node]) -> None:
        """Show the details of the selected step."""
        if event.node.data is not None:
            details = _details(event.node.data, self._entries, is_imported=self._is_imported)
            self.query_one("#detail", Static).update(details)

    def on_tree_node_selected(self, event: Tree.NodeSelected[Node]) -> None:
        """Show the selected request, or the first request below the selected step, in the transcript."""
        ids = event.node.data.ids if event.node.data is not None else frozenset()
        at = next((i for i, each in enumerate(self._entries) if each.attempt_id in ids), None)
        if at is not None:
            self.action_tab("transcript")
            self.query_one("#entries", OptionList).highlighted = at

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open or fold a text of the transcript."""
        at = event.option_index
        entry = self._entries[at]
        self._opened ^= {entry}
        prompt = _prompt(entry, self._agents, is_open=entry in self._opened)
        event.option_list.replace_option_prompt_at_index(at, prompt)

    def _look(self) -> None:
        """Read what was recorded since the last check. The next check does not interrupt a slow read."""
        if not self._is_reading:
            self._is_reading = True
            self._read()
        if self._has_consent and not self._is_reading_content:
            self._is_reading_content = True
            self._read_content()

    @work(thread=True)
    def _read(self) -> None:
        def read() -> SessionView | None:
            revision = self._data.revision()
            if revision == self._revision:
                return None
            view = self._data.session(self._session_id)
            self._revision = revision
            return view

        try:
            read_and_show(self, read, self._show, self._show_error)
        finally:
            self._is_reading = False

    @work(thread=True)
    def _read_content(self) -> None:
        def read() -> list[Entry] | None:
            revision = self._data.revision()
            if revision == self._content_revision:
                return None
            self._content_revision = revision
            return transcript(self._data.recording(self._session_id))

        try:
            read_and_show(self, read, self._show_content, self._show_no_content)
        finally:
            self._is_reading_content = False

    def _show_error(self, error: str) -> None:
        self._revision = None  # the next check reads again
        self.query_one("#banner", Static).update(Text(error, style="red"))

    def _show(self, view: SessionView | None) -> None:
        if view is None:
            return
        self.query_one("#banner", Static).update(_banner(view, self.size.width - 2))
        self._is_shown = True
        self._agents, self._is_imported = view.agents, view.is_imported
        self._show_tree(view)
        self._show_money(view)
        self.query_one(PlaybackPane).show(view.steps)

    def _show_tree(self, view: SessionView) -> None:
        """Show the steps. The failed step is selected, and the steps above it are red as well.

        If the session was shown before, the selected step stays selected.
        """
        tree: Tree[Node] = self.query_one("#tree", Tree)
        before = tree.cursor_node.data if tree.cursor_node else None
        tree.clear()
        self._failures = []
        for node in view.roots:
            self._add(tree.root, node)
        tree.root.expand_all()
        wanted = before.id if before is not None else view.failed_step_id
        target = [node for node in _below(tree.root) if node.data and node.data.id == wanted]
        # A tool call and its permission decision have the same ID.
        target.sort(key=lambda node: not _is_same(node.data, before))
        # Lines of nodes are known after the next refresh.
        self.call_after_refresh(tree.move_cursor, (target or self._failures or [tree.root])[0])

    def _add(self, parent: TreeNode[Node], node: Node) -> None:
        style = "bold red" if node.state == "failed" else "red" if node.has_failed_step else ""
        label = Text(printable(node.text), style=style)
        if node.kind == "attempt" and node.facts["turn"] is not None:
            label.append(f"  turn {node.facts['turn']:,}", style="dim")
        took = node.facts["duration_ns"]
        shown = estimated("duration_ns", took, node.facts) or seconds(took)
        if shown is not None:
            label.append(f"  {shown}", style="dim")
        if node.state == "failed":
            words = (node.facts["outcome"], node.facts["error_type"])
            label.append(
                f"  {printable(' '.join(str(each) for each in words if each))}", style="red"
            )
        add = parent.add if node.children else parent.add_leaf
        added = add(label, node)
        if node.state == "failed":
            self._failures.append(added)
        for child in node.children:
            self._add(added, child)

    def _show_money(self, view: SessionView) -> None:
        self.query_one("#total", Static).update(Text("\n".join(_totals(view))))
        table: DataTable[Text] = self.query_one("#turns", DataTable)
        table.clear(columns=True)
        for name in _MONEY:
            table.add_column(Text(heading(name)))
        for row in view.turns:
            named = {**row, "lane": row.get("agent")}
            sign = COST_SIGNS["lower_bound"] if has_partial_counts(row) else ""
            signs = {"output_tokens": sign}
            named["cost_usd"] = money(row["cost_usd"], row["cost_status"])
            table.add_row(*(_cell(name, named[name], signs.get(name, "")) for name in _MONEY))

    def _show_content(self, entries: list[Entry] | None) -> None:
        """Show the transcript; the selected text stays selected, and open texts stay open."""
        if entries is None:
            return
        shown = self.query_one("#entries", OptionList)
        selected = self._entries[shown.highlighted] if shown.highlighted is not None else None
        self._entries = entries
        self.query_one("#consent").display = False
        shown.display = True
        shown.clear_options()
        shown.add_options(
            [Option(_prompt(each, self._agents, is_open=each in self._opened)) for each in entries]
        )
        if selected in entries:
            shown.highlighted = entries.index(selected)
        self.query_one(PlaybackPane).show_content(entries)
        node = self.query_one("#tree", Tree).cursor_node
        if node is not None and node.data is not None:
            details = _details(node.data, entries, is_imported=self._is_imported)
            self.query_one("#detail", Static).update(details)

    def _show_no_content(self, error: str) -> None:
        self.query_one("#consent", Static).update(Text(error, style="red"))


def _is_same(node: Node | None, before: Node | None) -> bool:
    """Return whether a node with the wanted ID is the one that was selected before; at first, whether it failed."""
    return node is not None and (
        node.kind == before.kind if before is not None else node.state == "failed"
    )


def _below(node: TreeNode[Node]) -> Iterator[TreeNode[Node]]:
    for child in node.children:
        yield child
        yield from _below(child)


def _banner(view: SessionView, width: int) -> Text:
    """Return the first lines: name, ID and title, cut at a width; the failure or the outcome; and the numbers
    of the session.
    """
    about = view.about
    named = " ".join(filter(None, (str(about["name"] or ""), str(about["session_id"]))))
    shown = Text(printable(named), style="bold")
    if view.title:
        shown.append(f"  {printable(view.title)}")
    shown.truncate(max(width, 1), overflow="ellipsis")
    shown.append("\n")
    status = str(about["status"])
    if view.failure is not None:
        failed = printable(f"{view.failure['status']}: {view.failure['summary']}")
        shown.append(f"{failed}\n", style="bold red")
    else:
        shown.append(f"{status}\n", style=f"not bold {STYLES.get(status, '')}".strip())
    if view.failure is None or sum(each.count for each in view.failed_steps) > 1:
        shown.append(_failures(view))
    notes = call_notes(
        number_failed(view.failed_steps, "tool_call"), number_denied(view.failed_steps)
    )
    numbers = (
        _count(about["turns"], "turn"),
        _count(about["llm_requests"], "request"),
        _count(about["tool_calls"], "tool call") + (f" ({notes})" if notes else ""),
        _cost(view),
        seconds(about["duration_ns"]) or "running",
        f"started {local_instant(about['started_ns'])}",
    )
    shown.append(", ".join(numbers), style="not bold")
    return shown


def _failures(view: SessionView) -> Text:
    """Return the line with the failed tool calls and request attempts, and how they failed; empty if none failed."""
    words = failures_by_way(view.failed_steps)
    return Text(f"{printable(words)}\n" if words else "", style="not bold")


def _count(count: int | None, noun: str) -> str:
    return f"{text(count)} {noun}{'' if count == 1 else 's'}"


def _cost(view: SessionView) -> str:
    """Return the cost of a session, marked if it is not exact."""
    return certain_money(view.about["cost_usd"], view.cost_status) or "unknown cost"


def _details(node: Node, entries: Sequence[Entry], *, is_imported: bool) -> Text:
    shown = Text()
    for name, value in node.facts.items():
        if name == "agent" and value == node.facts.get("lane"):
            continue
        words = text(pretty(name, value))
        if name == "started_ns" and value is not None:
            words = str(local_instant(value))
        elif name == "duration_ns":
            words = _duration(node, is_imported=is_imported)
        elif value is None or name in ("depth", "estimated_ns"):
            continue
        if words:
            shown.append(f"{heading(name):<14}", style="dim")
            shown.append(f"{words}\n")
    for each in entries:
        if each.attempt_id == node.id:
            shown.append(f"\n{printable(each.title)}\n", style=_COLORS[each.kind])
            shown.append(f"{each.text}\n")
    return shown


def _duration(node: Node, *, is_imported: bool) -> str:
    """Return the duration of a step, and what is not known about it; empty if it has none."""
    took = node.facts["duration_ns"]
    if (guess := estimated("duration_ns", took, node.facts)) is not None:
        return f"{guess}, {ESTIMATED_TIMES}"
    waits = f", {UNSEEN_WAITS}" if is_imported and node.kind == "tool_call" else ""
    return "" if took is None else f"{seconds(took)}{waits}"


def _prompt(entry: Entry, agents: Mapping[str, str], *, is_open: bool) -> Text:
    place = f"{printable(name_of_lane(entry.lane, agents))}, request {entry.number}  "
    shown = Text(place, style="dim")
    shown.append(printable(entry.title), style=_COLORS[entry.kind])
    lines = entry.text.split("\n")
    most = len(lines) if is_open else 1 if entry.kind == "thinking" else FOLDED_LINES
    shown.append("\n" + "\n".join(lines[:most]))
    if len(lines) > most:
        shown.append(f"\n… {len(lines) - most:,} more lines (Enter)", style="dim")
    return shown


def _totals(view: SessionView) -> Iterator[str]:
    """Yield the cost of each model, and each kind of waste."""
    for row in view.models:
        cost = certain_money(row["cost_usd"], row["cost_status"]) or "no price"
        calls = row["calls"]
        yield printable(f"{row['model']}: {cost}, {calls:,} call{'s' * (calls != 1)}")
    for label, words in waste_facts(view.waste, view.waste_total):
        yield f"{label}: {printable(words)}"


def _cell(name: str, value: Any, sign: str = "") -> Text:
    shown: Mapping[str, Any] = {"cost_status": COST_STATUSES.get(str(value), "-")}
    is_number = name.endswith(("_tokens", "_usd")) or name == "turn"
    return Text(
        shown.get(name) or f"{sign}{text(value if name == 'cost_usd' else pretty(name, value))}",
        justify="right" if is_number else "left",
    )

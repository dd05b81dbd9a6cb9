"""The tab that plays a recorded session: its steps appear one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.timer import Timer
from textual.widgets import DataTable, Static

from agentobs.cli.terminal.transcript import Entry
from agentobs.cli.tui.playback import Playback
from agentobs.records.display import money, printable, seconds, text

SHORTEST_SECONDS = 0.01
"""The shortest pause between two steps. Textual's timers cannot be shorter than a positive number."""
_KINDS = {"request": "request", "tool_call": "tool call", "decision": "permission"}
_FIXED_WIDTH = 9 + 6 + 4 + 8 + 6 * 2
"""The width of the columns without texts, and of the gaps."""
_GOOD = ("ok", "executed", "allow")


class PlaybackPane(Vertical):
    """Plays the steps of a session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "Play", priority=True),
        Binding("right", "forward", "Step", priority=True),
        Binding("left", "back", "Back", priority=True),
        Binding("plus", "faster", "Faster", key_display="+"),
        Binding("minus", "slower", "Slower", key_display="-"),
        Binding("0", "fixed", "1 step/s", show=False),
        Binding("r", "recorded", "Recorded pace", show=False),
    ]

    def __init__(self) -> None:
        """Play nothing yet."""
        super().__init__()
        self._steps: Sequence[Mapping[str, Any]] = ()
        self._entries: Sequence[Entry] = ()
        self._timer: Timer | None = None
        self.playback = Playback(())

    def compose(self) -> ComposeResult:
        """Lay out the tab."""
        yield Static(id="position", markup=False)
        yield DataTable[Text](cursor_type="row", id="played-steps")
        with VerticalScroll(id="played"):
            yield Static(id="played-content", markup=False)

    def on_mount(self) -> None:
        """Prepare the table."""
        table: DataTable[Text] = self.query_one(DataTable)
        texts = max(self.app.size.width - _FIXED_WIDTH, 36)
        widths = (9, 6, 4, texts * 3 // 5, texts - texts * 3 // 5, 8)
        names = ("after", "lane", "turn", "step", "outcome", "cost")
        for name, width in zip(names, widths, strict=True):
            table.add_column(Text(name), width=width)

    def show(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Show the steps of a session from the first one on, or more steps of the same session."""
        is_new = not self._steps
        self._steps = steps
        times_ns = [step["started_ns"] for step in steps]
        if is_new:
            self._change(Playback(times_ns).forward())
        else:  # the session is running; the position stays, and steps that were shown may have ended
            self.query_one(DataTable).clear()
            self._change(replace(self.playback, times_ns=times_ns))

    def show_content(self, entries: Sequence[Entry]) -> None:
        """Show the content of steps from now on."""
        self._entries = entries
        self._show()

    def action_play(self) -> None:
        """Start or stop."""
        self._change(self.playback.toggled())

    def action_forward(self) -> None:
        """Go forward one step."""
        self._change(self.playback.forward())

    def action_back(self) -> None:
        """Go back one step."""
        self._change(self.playback.back())

    def action_faster(self) -> None:
        """Take the next higher speed."""
        self._change(self.playback.faster())

    def action_slower(self) -> None:
        """Take the next lower speed."""
        self._change(self.playback.slower())

    def action_fixed(self) -> None:
        """Play one step per second."""
        self._change(self.playback.at_fixed_pace())

    def action_recorded(self) -> None:
        """Play at the recorded pace."""
        self._change(self.playback.at_recorded_pace())

    def _change(self, playback: Playback) -> None:
        self.playback = playback
        self._show()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if playback.is_playing and not playback.is_at_end:
            self._timer = self.set_timer(
                max(playback.delay_seconds, SHORTEST_SECONDS), self.action_forward
            )

    def _show(self) -> None:
        table: DataTable[Text] = self.query_one(DataTable)
        shown = self._steps[: self.playback.position]
        while table.row_count > len(shown):
            table.remove_row(str(table.row_count - 1))
        for number in range(table.row_count, len(shown)):
            table.add_row(*_cells(shown[number], self._steps[0]["started_ns"]), key=str(number))
        if shown:
            table.move_cursor(row=len(shown) - 1)
        self.query_one("#position", Static).update(Text(self._position(shown)))
        self.query_one("#played-content", Static).update(self._content(shown))

    def _position(self, shown: Sequence[Mapping[str, Any]]) -> str:
        playback = self.playback
        spent = sum((step["cost_usd"] or Decimal(0) for step in shown), Decimal(0))
        next_ns = int(playback.delay_seconds * 1e9)
        state = (
            "end" if playback.is_at_end
            else f"playing, next step in {seconds(next_ns)}" if playback.is_playing
            else "stopped"
        )  # fmt: skip
        return (
            f" step {playback.position:,} of {len(self._steps):,}, {seconds(playback.elapsed_ns)} after the start, "
            f"{money(spent)} so far  [{playback.pace}, {state}]"
        )

    def _content(self, shown: Sequence[Mapping[str, Any]]) -> Text:
        """Return the content of the last step, if it is a request and content may be shown."""
        if not shown or shown[-1]["kind"] != "request":
            return Text()
        lines = Text()
        for each in self._entries:
            if each.attempt_id == shown[-1]["id"]:
                lines.append(f"{printable(each.title)}\n", style="bold")
                lines.append(f"{each.text}\n")
        return lines


def _cells(step: Mapping[str, Any], first_ns: int) -> list[Text]:
    subject = step["model"] if step["kind"] == "request" and step["model"] else step["name"]
    outcome = printable(str(step["outcome"] or "-"))
    is_good = outcome.split(" ")[0] in _GOOD
    return [
        Text(seconds(step["started_ns"] - first_ns) or "", justify="right"),
        Text(printable(str(step.get("agent") or step["lane"]))),
        Text(text(step["turn"]), justify="right"),
        Text(printable(f"{_KINDS[step['kind']]} {subject}")),
        Text(outcome, style="" if is_good or outcome == "-" else "red"),
        Text(money(step["cost_usd"]) or "", justify="right"),
    ]

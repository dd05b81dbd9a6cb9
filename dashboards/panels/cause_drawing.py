"""A chain of causes as SVG: one file without scripts or references, in light and dark colors.

This needs the standard library only, so that `agentobs why --svg` works without the extra `dashboards`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from agentobs.records.display import printable
from agentobs.store.analysis.cause_texts import ShownCause
from agentobs.store.analysis.effect_causes import CauseGraph

ROW, INDENT, EDGE = 34.0, 22.0, 12.0
"""The height of a row, the width of one level, and the space around the drawing, in pixels. Our choice."""
LETTER = 7.5
"""The width of a letter of 12 pixels in a wide font, in pixels. Our choice."""
CHARACTERS_MAX = 110
"""The maximum number of characters of a line that are drawn; the rest is in its tooltip. Our choice."""
STEPS_MAX = 500
"""The maximum number of steps that are drawn. Our choice."""

_STYLE = """
.why { --ink: #1d2329; --faint: #57606a; --paper: #ffffff; --line: #8a96a3; --wanted: #1f5fa8; --box: #f4f6f8 }
@media (prefers-color-scheme: dark) {
.why { --ink: #e6eaee; --faint: #a3adb8; --paper: #14181d; --line: #7f8b98; --wanted: #6fa8f0; --box: #1d232a } }
.why .paper { fill: var(--paper) } .why .box { fill: var(--box); stroke: var(--line) }
.why .wanted { stroke: var(--wanted); stroke-width: 2 } .why .ink { fill: var(--ink) }
.why .faint { fill: var(--faint); font-size: 11px } .why .line { stroke: var(--line); fill: none; stroke-width: 1.5 }
.why .inferred { stroke-dasharray: 4 3 }
"""


def cause_svg(shown: Sequence[ShownCause], graph: CauseGraph) -> str:
    """Return a chain of causes as an SVG document; dashed lines are inferred.

    Args:
        shown: the steps, from `CauseTexts.shown`; their names are drawn as they are.
        graph: the graph of the steps.
    """
    steps = shown[:STEPS_MAX]
    texts = [_cut(printable(each.line)) for each in steps]
    notes = [printable(each.evidence) for each in steps]
    boxes = [len(text) * LETTER + 16 for text in texts]
    left = [EDGE + each.depth * INDENT for each in steps]
    width = max(
        (
            x + box + 10 + len(note) * LETTER
            for x, box, note in zip(left, boxes, notes, strict=True)
        ),
        default=200.0,
    )
    width += EDGE
    rows = len(steps) + (len(shown) > STEPS_MAX)
    height = rows * ROW + 2 * EDGE
    parts: list[str] = []
    last: dict[int, int] = {}
    for at, step in enumerate(steps):
        parts.extend(_connection(step, at, last, left))
        if not step.is_result:
            last[step.depth] = at
    for at, (step, text, note) in enumerate(zip(steps, texts, notes, strict=True)):
        x, y = left[at], EDGE + at * ROW
        kind = " wanted" if step.node.node_id in graph.wanted else ""
        tooltip = escape(printable(f"{step.line}  {step.evidence}".strip()))
        parts.append(
            f'<g><title>{tooltip}</title><rect class="box{kind}" x="{x:g}" y="{y:g}" width="{boxes[at]:g}" height="24" '
            f'rx="4"/><text class="ink" x="{x + 8:g}" y="{y + 16:g}">{escape(text)}</text>'
            f'<text class="faint" x="{x + boxes[at] + 8:g}" y="{y + 16:g}">{escape(note)}</text></g>'
        )
    if len(shown) > STEPS_MAX:
        y = EDGE + len(steps) * ROW + 16
        parts.append(
            f'<text class="faint" x="{EDGE:g}" y="{y:g}">{len(shown) - STEPS_MAX:,} more steps</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="why" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="Causes" font-size="12" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace"><style>{_STYLE}</style>'
        f'<rect class="paper" width="{width:g}" height="{height:g}"/>{"".join(parts)}</svg>\n'
    )


def _connection(
    step: ShownCause, at: int, last: dict[int, int], left: Sequence[float]
) -> list[str]:
    """Return the line from the cause of a step to the step."""
    above = last.get(step.depth - 1)
    if above is None:
        return []
    kind = " inferred" if step.evidence.startswith("inferred") or not step.evidence else ""
    x, top = left[above] + 8, EDGE + above * ROW + 24
    middle = EDGE + at * ROW + 12
    return [f'<path class="line{kind}" d="M{x:g} {top:g}V{middle:g}H{left[at]:g}"/>']


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 1]}\u2026"


__all__ = ["cause_svg"]

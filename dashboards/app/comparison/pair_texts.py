"""The texts of two aligned steps, compared word by word. They are content, so they are requested with POST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.provider.run_ids import shape_of
from dashboards.app.content_forms import Fields, content_response, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.site import site_of
from dashboards.app.step_content import call_blocks_of, request_parts_of
from dashboards.app.store_view import Row, View
from dashboards.content.edits import MOST_LINES, Line, text_lines
from dashboards.content.message_view import Block, Message

Texts = Mapping[str, str]
"""The texts of a step, by what they are."""


@dataclass(frozen=True, slots=True)
class TextChange:
    """One text of a step in both sessions."""

    name: str
    summary: str
    """Whether the texts differ, and which session has only one of them."""
    lines: Sequence[Line]
    """The difference; empty if the texts are identical."""
    more: int
    """The number of lines that are not shown."""


def texts(request: Request, fields: Fields) -> Response:
    """Show the differences of the texts of two steps."""
    names = fields.get("a", ""), fields.get("b", "")
    steps = fields.get("a_step", ""), fields.get("b_step", "")
    content = Content(site_of(request).home)
    found: list[Texts | Withheld] = []
    for session_id, step_id in zip(names, steps, strict=True):
        with site_of(request).reader.view() as view:
            about = _attempt_of(view, session_id, step_id) if step_id else None
            read = None if about is None else _reader(view, about, step_id)
        with CONTENT_SLOTS:
            found.append({} if read is None else read(content))
    changes = _changes(*found)
    return content_response(
        request,
        "pair_texts.html",
        title="Differences of the texts",
        back=f"/compare?{urlencode({'a': names[0], 'b': names[1]})}",
        withheld=[
            (letter, each)
            for letter, each in zip("AB", found, strict=True)
            if isinstance(each, Withheld)
        ],
        changes=changes,
    )


def _attempt_of(view: View, session_id: str, step_id: str) -> Row:
    """Return the attempt that contains a step.

    Raises:
        UsageError: the session has no such step.
    """
    rows = view.named("internal/attempt", attempt_id=step_id.partition(" ")[0])
    if not rows or rows[0]["session_id"] != session_id:
        raise UsageError("this session has no such step", where=step_id[:80])
    return rows[0]


def _reader(view: View, about: Row, step_id: str) -> Any:
    """Return the function that reads the texts of a step from the content."""
    parts = step_id.split(" ", 2)
    if len(parts) == 3:
        blocks = call_blocks_of(view, about, parts[1])
        return lambda content: _call_texts(blocks(content))
    request_parts = request_parts_of(view, about)
    return lambda content: _request_texts(*request_parts(content))


def _call_texts(blocks: Sequence[Block | Withheld]) -> Texts | Withheld:
    found: dict[str, str] = {}
    for block in blocks:
        if isinstance(block, Withheld):
            return block
        found["Input" if block.kind == "call" else "Result"] = _text(block)
    return found


def _request_texts(added: Any, response: Message | Withheld | None) -> Texts | Withheld:
    if isinstance(added, Withheld):
        return added
    found = {block.title: _text(block) for block in added.system_and_tools}
    if added.messages:
        found["New messages"] = "\n".join(map(_message_text, added.messages))
    if isinstance(response, Withheld):
        return response
    if response is not None:
        found["Response"] = _message_text(response)
    return found


def _message_text(message: Message) -> str:
    return "\n".join(f"{each.title or message.role}:\n{_text(each)}" for each in message.blocks)


def _text(block: Block) -> str:
    text = block.readable or block.text.shown
    return f"{text}\n(cut: {block.text.characters:,} characters)" if block.text.is_cut else text


def _changes(a: Texts | Withheld, b: Texts | Withheld) -> list[TextChange]:
    """Return the differences of the texts of two steps, in the order in which the steps have them."""
    old, new = ({} if isinstance(each, Withheld) else each for each in (a, b))
    if isinstance(a, Withheld) or isinstance(b, Withheld):
        return []
    return [_change(name, old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))]


def _change(name: str, old: str | None, new: str | None) -> TextChange:
    if old == new:
        return TextChange(name, _same(name, old or ""), (), 0)
    summary = "only in B" if old is None else "only in A" if new is None else "changed"
    if old is not None and new is not None and shape_of(old).text == shape_of(new).text:
        summary = "only IDs differ"
    lines = text_lines(old or "", new or "")
    if old is None or new is None:
        wanted = "added" if old is None else "removed"
        lines = [each for each in lines if each.sign in (wanted, "omitted")]
    return TextChange(name, summary, lines[:MOST_LINES], max(len(lines) - MOST_LINES, 0))


def _same(name: str, text: str) -> str:
    """Return what is identical: the texts, or their shown parts. Equal texts of a response may have different usage."""
    words = "the shown part is identical" if "\n(cut: " in text else "identical text"
    return f"{words}; token counts may differ" if name == "Response" else words


routes = [Route("/compare/texts", on_click(texts), methods=["GET", "POST"])]

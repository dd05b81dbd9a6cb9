"""Markdown as HTML for a page: nothing in it can run, load anything, or be followed by accident.

Raw HTML stays text. Links and images become their text and their address. The result is sanitized a second time, so an
error in the renderer cannot create other elements than the allowed ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import find_lexer_class_by_name
from pygments.util import ClassNotFound

from dashboards.content.visible_text import visible

MOST_NESTING = 20
"""The maximum depth of nested lists and quotes; deeper ones are text. Our choice."""
MOST_HIGHLIGHTED = 10_000
"""The maximum length of a code block that is highlighted, in characters. Our choice."""
_TAGS: Final = {
    "p", "strong", "em", "s", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br",
    "table", "thead", "tbody", "tr", "th", "td", "span",
}  # fmt: skip
_ATTRIBUTES: Final[dict[str, set[str]]] = {"span": {"class"}, "p": {"class"}, "ol": {"start"}}


def markdown(text: str) -> Markup:
    """Return a text that may contain Markdown as HTML, with invisible characters as escapes."""
    rendered = _renderer().render(visible(text))
    clean = nh3.clean(
        rendered, tags=_TAGS, attributes=_ATTRIBUTES, url_schemes=set(), link_rel=None
    )
    # Character references in Markdown may be invisible characters.
    return Markup(visible(clean))


@cache
def _renderer() -> MarkdownIt:
    made = MarkdownIt(
        "commonmark",
        {"html": False, "breaks": True, "maxNesting": MOST_NESTING, "highlight": _highlighted},
    )
    made.enable(["table", "strikethrough"])
    made.core.ruler.push("plain_links", _plain_links)
    for name in ("heading_open", "heading_close"):
        made.add_render_rule(name, _heading)
    return made


def _plain_links(state: StateCore) -> None:
    """Replace links and images by their text and their address."""
    for block in state.tokens:
        if block.children:
            block.children = _without_links(block.children)


def _without_links(tokens: list[Token]) -> list[Token]:
    found: list[Token] = []
    open_links: list[tuple[str, int]] = []
    for token in tokens:
        if token.type == "link_open":
            open_links.append((str(token.attrGet("href") or ""), len(found)))
        elif token.type == "link_close" and open_links:
            address, start = open_links.pop()
            said = "".join(each.content for each in found[start:])
            if address and said != address:
                found.append(_text(f" ({address})"))
        elif token.type == "image":
            address = str(token.attrGet("src") or "")
            found.append(_text(f"[image: {token.content or 'untitled'}] ({address})"))
        else:
            found.append(token)
    return found


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _heading(
    renderer: RendererHTML, tokens: list[Token], number: int, options: Any, env: Any
) -> str:
    """Render a heading as a bold paragraph, because the headings of the page describe the page."""
    del renderer, options, env
    return '<p class="heading">' if tokens[number].nesting == 1 else "</p>\n"


def _highlighted(code: str, language: str, attributes: str) -> str:
    """Return code as HTML with classes for its tokens; empty if the language is unknown."""
    del attributes
    if not language or len(code) > MOST_HIGHLIGHTED:
        return ""
    try:
        lexer = find_lexer_class_by_name(language)()
    except ClassNotFound:
        return ""
    formatter = HtmlFormatter(nowrap=True, classprefix="hl-")
    return str(highlight(code, lexer, formatter))

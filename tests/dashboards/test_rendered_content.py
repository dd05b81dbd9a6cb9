"""Rendered content: Markdown, JSON and images of a transcript run nothing, load nothing and stay small."""

from __future__ import annotations

import base64
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.content.images import MOST_BYTES, images_in
from dashboards.content.json_tree import MOST_VALUES, json_tree, parsed
from dashboards.content.markdown import markdown
from dashboards.content.visible_text import TOO_DEEP, text_of

ALLOWED = {
    "p", "strong", "em", "s", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br", "table", "thead", "tbody",
    "tr", "th", "td", "span",
}  # fmt: skip
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](https://evil.example/pixel.png)",
    "[go](javascript:alert(1))",
    "[go](https://evil.example)",
    "<https://evil.example>",
    "[a]: https://evil.example\n\n[a]",
    "[x](data:text/html,<script>alert(1)</script>)",
    "<iframe src=//evil.example></iframe>",
    "```html\n<script>alert(1)</script>\n```",
    '```"onmouseover=alert(1)\nx\n```',
    "&lt;img src=x onerror=alert(1)&gt;",
    "| <svg onload=alert(1)> |\n| --- |\n| <b onclick=alert(1)>x |",
    "> " * 200 + "deep",
    "*" * 3_000,
    "[" * 3_000,
    "&#x202e;gnp.exe &#x1b;[31m",
)
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 100).decode()


class Parsed(HTMLParser):
    """Collects the elements and attributes of HTML, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(str(html))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_harmless(text: str) -> None:
    """Markdown creates only elements of a short list, without links, images, event handlers and styles."""
    found = Parsed(markdown(text))
    assert found.tags <= ALLOWED
    assert found.attributes <= {"class", "start"}
    assert not [sign for sign in "\u202e\x1b" if sign in found.text]


@given(st.text(alphabet=st.sampled_from("<>&\"'`*_[]()!#|-\n ax:/\\=;\u202e\x00"), max_size=200))
def test_any_markdown_is_harmless(text: str) -> None:
    """No combination of signs creates another element or attribute."""
    found = Parsed(markdown(text))
    assert found.tags <= ALLOWED
    assert found.attributes <= {"class", "start"}


def test_markdown_is_rendered() -> None:
    """Emphasis, lists, tables and code are rendered; line breaks are kept; links show their address."""
    html = markdown("# Title\nfirst\nsecond **bold**\n\n- one\n- two\n\n| a |\n| - |\n| b |\n")
    assert '<p class="heading">Title</p>' in html
    assert "first<br>" in html
    assert "<strong>bold</strong>" in html
    assert html.count("<li>") == 2
    assert "<td>b</td>" in html
    assert "here (https://a.example/b)" in Parsed(markdown("[here](https://a.example/b)")).text
    code = markdown("```python\nreturn 1\n```")
    assert '<span class="hl-k">return</span>' in code
    assert "return 1" in Parsed(markdown("```unknown-language\nreturn 1\n```")).text


def test_json_is_a_bounded_tree() -> None:
    """Objects and lists are nested lists; large and deep values are cut, and all texts are escaped."""
    html = json_tree({"<b>": ["x", {"y": None}], "text": "a\u202eb"})
    found = Parsed(html)
    assert found.tags == {"ul", "li", "details", "summary", "span"}
    assert "<b>" in found.text
    assert "null" in found.text
    assert "a\\u202eb" in found.text
    large = Parsed(json_tree({"all": list(range(100_000))}))
    assert f"{100_000 - MOST_VALUES + 1:,} more" in large.text
    deep: object = "end"
    for _ in range(200):
        deep = [deep]
    assert len(json_tree(deep)) < 20_000


def test_values_that_can_hardly_be_parsed_are_shown() -> None:
    """A value whose nesting is just below the limit of the parser breaks neither the tree nor the text."""

    def shown(value: object, frames: int) -> str:
        """Render a value below additional frames of the stack."""
        return shown(value, frames - 1) if frames else f"{json_tree(value)}{text_of(value)}"

    depth = next(depth for depth in range(2_000, 0, -1) if parsed("[" * depth + "]" * depth))
    value = parsed("[" * depth + "]" * depth)
    assert shown(value, 20).count(TOO_DEEP) == 2


def test_only_objects_and_lists_are_trees() -> None:
    """A text that contains JSON is a tree, other texts are not."""
    assert parsed('{"a": 1}') == {"a": 1}
    assert parsed(" [1]") == [1]
    assert [parsed(each) for each in ("1", "null", "{broken", "text", 5, "[" * 100_000)] == [
        None
    ] * 6


def test_images_are_recognized_by_their_bytes() -> None:
    """Only images that browsers decode without running anything are shown, wherever a message contains them."""
    anthropic = {"type": "image", "source": {"type": "base64", "media_type": "x", "data": PNG}}
    svg = base64.b64encode(b"<svg onload=alert(1)>" * 10).decode()
    found = images_in([anthropic, {"image": {"source": {"bytes": PNG}}}, {"data": svg}])
    assert [each.url for each in found] == [f"data:image/png;base64,{PNG}"] * 2
    assert found[0].size == 108
    broken = PNG[:40] + '"><script>' + PNG[40:]
    assert [each.url for each in images_in([broken])] == [""]
    huge = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * MOST_BYTES).decode()
    assert [(each.kind, each.url) for each in images_in([huge])] == [("image/png", "")]

"""Results: how the return value of a tool is rendered for the model, and how long it may be."""

from __future__ import annotations

import base64
import dataclasses
import enum
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentobs.agent.tools.results import (
    BINARY_CHARS_MAX,
    IMAGE_CHARS_MAX,
    ITEMS_CHARS_MAX,
    ITEMS_MAX,
    NOT_READ,
    PREVIEW_CHARS_MAX,
    Content,
    error_text,
    fit,
    is_quick,
    render,
)


class Unit(enum.Enum):
    MILE = "mi"


class Point(BaseModel):
    x: float
    y: float


@dataclasses.dataclass
class Found:
    path: str
    unit: Unit


class Strange:
    def __str__(self) -> str:
        return "strange"


class Mute:
    def __str__(self) -> str:
        raise ValueError("no text")


class Text(str):
    def __str__(self) -> str:
        raise ValueError("no text")


def deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


def ring() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def image(size: int) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * size}
    return {"type": "image", "source": source}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def shown(value: Any) -> Content:
    return fit(render(value), 50_000, lambda _: None)


RESULTS: list[tuple[Any, Any]] = [
    ("plain", "plain"),
    (Text("plain"), "plain"),
    ("caf\udce9", "caf?"),
    ([words("a block")], [words("a block")]),
    ([words("caf\udce9"), words("")], [words("caf?")]),
    ([image(8), {"type": "tool_reference", "tool_name": "a"}],) * 2,
    ([{"type": "dog"}], '[{"type":"dog"}]'),
    ([{"type": "text"}], '[{"type":"text"}]'),
    ([{"type": "text", "text": "a", "b": {1: 2}}], '[{"type":"text","text":"a","b":{"1":2}}]'),
    ([], "[]"),
    (Point(x=1, y=0), '{"x":1.0,"y":0.0}'),
    (Found("ä", Unit.MILE), '{"path":"ä","unit":"mi"}'),
    ({"n": [1, None, True]}, '{"n":[1,null,true]}'),
    ({"name": "caf\udce9"}, '{"name": "caf?"}'),
    (None, "null"),
    (float("nan"), "NaN"),
    (10**5_000, "1" + "0" * 5_000),
    ({"b", "a", "c"}, '["a","b","c"]'),
    (frozenset({2, 1}), "[1,2]"),
    ((n for n in (1, 2)), "[1,2]"),
    (iter([words("a")]), [words("a")]),
    (map(str, range(2)), '["0","1"]'),
    (range(3), "[0,1,2]"),
    ({"a": 1}.items(), '[["a",1]]'),
    (b"caf\xc3\xa9", "café"),
    (bytearray(b"text"), "text"),
    (memoryview(b"text"), "text"),
    (b"\x89PNG\r\n\x1a\n\xff", "9 bytes that are not text (a PNG image)"),
    (b"\xff" * 1_234, "1,234 bytes that are not text"),
    ({"raw": b"\xff\xfe"}, '{"raw":"__4="}'),
    (Strange(), "strange"),
    ({"inner": Strange()}, '{"inner":"strange"}'),
    (Mute(), "a value of type Mute that cannot be shown (ValueError)"),
    ({"inner": Mute()}, '{"inner":"a value of type Mute that cannot be shown (ValueError)"}'),
    (deep(), "a value of type list that cannot be shown (RecursionError)"),
    (ring(), "[1, [...]]"),
]


@pytest.mark.parametrize(("result", "seen"), RESULTS, ids=[str(n) for n in range(len(RESULTS))])
def test_results_are_rendered_for_the_model(result: Any, seen: Any) -> None:
    """Text and content blocks are sent unchanged; other values are rendered as JSON if possible, or else with `str`."""
    assert shown(result) == seen


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters())
odd = st.binary() | st.builds(Mute) | st.builds(Strange) | st.dates() | st.sets(st.integers())
blocks = st.fixed_dictionaries({"type": st.sampled_from(["text", "image"]), "text": leaves})
values = st.recursive(
    leaves | odd | blocks,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(leaves.filter(lambda key: key == key), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(values, st.integers(1, 300))
def test_every_value_is_rendered(value: Any, chars_max: int) -> None:
    """Any value is rendered, without an exception, as JSON in UTF-8 of limited size."""
    seen = fit(render(value), chars_max, lambda _: None)
    assert len(json.dumps(seen, ensure_ascii=False, allow_nan=False).encode()) < 100_000
    if isinstance(seen, str):
        assert len(seen) <= max(chars_max, 150)


@given(st.text(alphabet="ab\n", max_size=600), st.integers(1, 400))
def test_omitted_characters_are_counted(text: str, chars_max: int) -> None:
    """The start, the end and the number of omitted characters add up to the complete text."""
    seen = str(fit(text, chars_max, lambda _: None))
    if len(text) <= chars_max:
        assert seen == text
        return
    found = re.fullmatch(
        r"(.*)\n\n\[([\d,]+) of ([\d,]+) characters .* time to see everything\.\]\n\n(.*)",
        seen,
        re.S,
    )
    assert found
    head, left, omitted, tail = found.groups()
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(omitted.replace(",", "")) == len(text)
    assert int(left.replace(",", "")) == len(text) - len(head) - len(tail)


@pytest.mark.parametrize(
    ("value", "quick"),
    [
        ("x" * 100, True),
        ({"a": [1, 2.5, None, True, {"b": "c"}]}, True),
        ("x" * 10_000, False),
        (["x"] * 10_000, False),
        ({"a": ["x" * 10_000]}, False),
        (10**5_000, False),
        (ring(), False),
        (Strange(), False),
        (Text("x"), False),
        ([(1, 2)], False),
    ],
    ids=[str(n) for n in range(10)],
)
def test_only_small_plain_values_are_rendered_in_the_event_loop(value: Any, quick: bool) -> None:
    """A value that is large, or that runs its own code when it is rendered, is not rendered in the event loop."""
    assert is_quick(value) is quick


def test_content_blocks_are_copied() -> None:
    """If a tool modifies its content blocks after it returned them, the result does not change."""
    blocks = [words("a")]
    seen = shown(blocks)
    blocks[0]["text"] = "b"
    assert seen == [words("a")]


def test_endless_iterators_are_truncated() -> None:
    """Of an endless iterator, the first items are read, up to a maximum number and length, and a note follows them."""
    many = json.loads(str(render(itertools.count())))
    assert (many[:2], many[-1], len(many)) == ([0, 1], NOT_READ, ITEMS_MAX + 1)
    long = json.loads(str(render(itertools.repeat("x" * (ITEMS_CHARS_MAX // 2)))))
    assert (len(long), long[-1]) == (3, NOT_READ)


def test_an_exception_of_a_generator_propagates() -> None:
    """A generator that fails midway is a failure of the tool, not a shorter result."""

    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        render(items())


def test_exceptions_are_rendered() -> None:
    """An exception is rendered with its class and its text, or with only its class if the text is empty or cannot be
    obtained.
    """

    class Mumbles(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert error_text(FileNotFoundError("a.txt")) == "FileNotFoundError: a.txt"
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert (
        error_text(Mumbles()) == "Mumbles (its message is unavailable: str() raised RuntimeError)"
    )


LINES = "".join(f"line {n}\n" for n in range(100_000))


def test_a_long_result_is_stored_and_shortened() -> None:
    """Of a long result, the model gets complete lines from the start and the end, the size of the omitted part, and the
    path of the stored text.
    """
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return "/home/results/1-call.txt"

    seen = fit(LINES, 50_000, keep)
    assert kept == [LINES]
    assert isinstance(seen, str)
    head, note, tail = seen.split("\n\n")
    assert head == LINES[: len(head)]
    assert head.splitlines()[-1] == f"line {len(head.splitlines()) - 1}"
    assert tail == LINES[-len(tail) :]
    assert tail.splitlines()[0] == f"line {100_000 - len(tail.splitlines())}"
    assert note == (
        f"[{len(LINES) - len(head) - len(tail):,} of {len(LINES):,} characters were omitted. "
        "The complete result is in /home/results/1-call.txt]"
    )
    assert PREVIEW_CHARS_MAX * 0.9 < len(seen) <= PREVIEW_CHARS_MAX


@pytest.mark.parametrize("text", [LINES, "x" * 888_890, "é" * 60_000, "\udce9" * 60_000])
@pytest.mark.parametrize("chars_max", [1, 100, 50_000])
def test_a_long_result_without_storage_is_truncated(text: str, chars_max: int) -> None:
    """Without storage, the model gets a long result up to the maximum length, and a note that the rest is lost."""
    seen = fit(text, chars_max, lambda _: None)
    assert isinstance(seen, str)
    assert "were omitted and not stored" in seen
    assert len(seen) <= max(chars_max, 150)
    assert seen.encode()


def test_a_result_of_exactly_the_maximum_length() -> None:
    """A result of exactly the maximum length is sent unchanged."""
    assert fit("x" * 100, 100, lambda _: "nowhere") == "x" * 100
    assert fit([words("x" * 50), words("y" * 50)], 100, lambda _: "nowhere") == [
        words("x" * 50),
        words("y" * 50),
    ]


def test_only_the_text_of_long_blocks_is_truncated() -> None:
    """If a list of blocks is too long, one text block contains the start and the end of all texts; images are
    unchanged.
    """
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return "/kept"

    document = {"type": "document", "source": {"type": "text", "data": "d" * 300}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [words("r" * 300)]}
    blocks = [image(8), words("a" * 300), image(9), words(""), document, found]
    seen = fit(render(blocks), 500, keep)
    assert isinstance(seen, list)
    assert [seen[0], seen[2]] == [image(8), image(9)]
    assert len(seen) == 3
    assert seen[1]["type"] == "text"
    assert "The complete result is in /kept" in seen[1]["text"]
    assert len(seen[1]["text"]) <= 500
    (stored,) = kept
    assert stored.startswith(f"{'a' * 300}\n\n{'d' * 300}\n\n{{")


def test_binary_blocks_respect_the_providers_limits() -> None:
    """A note replaces each image or document that is too large for the provider, and each image beyond the maximum
    number.
    """
    seen = fit([image(IMAGE_CHARS_MAX), image(IMAGE_CHARS_MAX + 4)], 500, lambda _: None)
    assert seen == [
        image(IMAGE_CHARS_MAX),
        words("[a block of type image with 3,932,163 bytes was omitted: it is too large]"),
    ]
    many = fit([image(IMAGE_CHARS_MAX)] * 5, 500, lambda _: None)
    assert [block["type"] for block in many if isinstance(block, dict)] == ["image"] * 4 + ["text"]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "A" * (BINARY_CHARS_MAX + 4)}
    notes = fit([{"type": "document", "source": pdf}], 500, lambda _: None)
    assert isinstance(notes, list)
    assert notes[0]["text"].startswith("[a block of type document")


def test_images_within_json_are_text() -> None:
    """Only a list of content blocks is sent as blocks; an image within any other value is rendered as text."""
    value = {"image": base64.b64encode(b"x" * 90_000).decode()}
    assert "characters were omitted" in str(shown(value))

"""Differences between JSON values: complete for sequences of any length, and short enough to show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.records import differences as module
from agentobs.records.differences import KEPT_CHARACTERS, differences, shortened, unequal_spans

ITEMS = st.lists(st.integers(0, 12), max_size=40)


@pytest.mark.parametrize("cells", [0, 20, 40_000])
@given(old=ITEMS, new=ITEMS)
def test_replacing_the_unequal_spans_gives_the_other_sequence(
    cells: int, old: list[int], new: list[int]
) -> None:
    """Replacing the unequal spans of one sequence gives the other sequence, whether they are aligned completely or by
    unique items.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CELLS_MAX", cells)
        spans = unequal_spans(old, new)
    rebuilt, at = list[int](), 0
    for a1, a2, b1, b2 in spans:
        assert a1 < a2 or b1 < b2, "a span is not empty"
        rebuilt += old[at:a1] + new[b1:b2]
        at = a2
    assert rebuilt + old[at:] == new
    assert (spans == []) == (old == new)


def test_an_insertion_into_a_long_list_is_one_difference() -> None:
    """An insertion into a long list is one difference, because items that occur once in each list anchor the
    comparison.
    """
    items = [f"message {number}" for number in range(500)]
    changed = [*items[:100], "inserted", *items[100:300], *items[301:]]
    found = [(each.path, each.change) for each in differences(items, changed)]
    assert found == [("$[100]", "added"), ("$[300]", "removed")]


@pytest.mark.parametrize("change", ["added", "removed"])
def test_a_long_item_that_was_added_or_removed_is_cut(change: str) -> None:
    """A long item that was added or removed is shown by its first characters as JSON, with the lengths of both
    sides.
    """
    item = {"text": "x" * 5000}
    lists = ([], [item]) if change == "added" else ([item], [])
    [found] = [shortened(each) for each in differences(*lists)]
    kept, length = json.dumps(item)[:KEPT_CHARACTERS], len(json.dumps(item))
    assert found.change == change
    if change == "added":
        assert (found.expected, found.actual, found.lengths) == (None, kept, (0, length))
    else:
        assert (found.expected, found.actual, found.lengths) == (kept, None, (length, 0))


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ('{"total": 1, "paid": true}', '{"total": 2, "paid": true}', ["$.text | $.total"]),
        ('{"total": 1}', "no order", ["$.text"]),
        ("no order", '{"total": 1}', ["$.text"]),
        ('{"total": 1}', '{ "total": 1 }', ["$.text"]),
    ],
)
def test_json_inside_of_a_text_is_compared(old: str, new: str, paths: list[str]) -> None:
    """If both texts contain JSON, the difference is named inside of it; otherwise, the whole text differs."""
    assert [each.path for each in differences({"text": old}, {"text": new})] == paths

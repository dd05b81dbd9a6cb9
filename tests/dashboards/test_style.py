"""The colors of figures can be distinguished by color-blind readers and in grayscale."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from dashboards.style import DARK, PARTS_OF_COST, PARTS_OF_TIME, TOKENS, Mark

Matrix = Sequence[Sequence[float]]

SEEN: dict[str, Matrix] = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "achromatopsia": ((0.2126, 0.7152, 0.0722),) * 3,
}
"""The matrices that convert linear light to its perception, by kind of vision.

Source: Machado, Oliveira and Fernandes 2009, severity 1; for gray, the luminance of BT.709.
"""
TO_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_LAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
"""The matrix of Oklab, in which equal distances look equally far apart (Ottosson 2020)."""
MIN_DISTANCE = 0.07
"""The minimum distance of two colors with the same pattern. Our choice; 0.02 is just noticeable side by side."""


def times(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]


def oklab(light: Sequence[float]) -> list[float]:
    cones = times(TO_CONES, [min(max(x, 0.0), 1.0) for x in light])
    return times(TO_LAB, [x ** (1 / 3) for x in cones])


def distance(first: str, second: str, seen: Matrix) -> float:
    pair = (oklab(times(seen, linear(each))) for each in (first, second))
    return sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize(
    "marks", [PARTS_OF_TIME, TOKENS, PARTS_OF_COST], ids=["time", "tokens", "cost"]
)
def test_items_can_be_distinguished(marks: Mapping[str, Mark], kind: str) -> None:
    """Any two items of a figure differ by their patterns, or sufficiently by their colors.

    This applies to both themes and to all kinds of vision.
    """
    for (a, first), (b, second) in itertools.combinations(marks.items(), 2):
        if first.pattern != second.pattern:
            continue
        light, dark = (
            distance(x, y, SEEN[kind])
            for x, y in ((first.color, second.color), (DARK[first.color], DARK[second.color]))
        )
        assert min(light, dark) >= MIN_DISTANCE, (a, b)


def test_the_check_notices_similar_colors() -> None:
    """The check finds marks that would look the same without their patterns."""
    model, person = PARTS_OF_TIME["model"], PARTS_OF_TIME["person"]
    assert distance(model.color, person.color, SEEN["protanopia"]) < MIN_DISTANCE
    assert distance("#ffffff", "#ffffff", SEEN["tritanopia"]) == 0

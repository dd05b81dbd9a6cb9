"""The area of a drawing, and the data that annotations need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dashboards.drawing.axes import Axis


@dataclass(slots=True)
class Box:
    """The part of a drawing that the plot takes, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Plot(Protocol):
    """A figure that has been laid out."""

    width: float
    """Width of the figure in pixels."""
    height: float
    """Height of the figure in pixels."""
    box: Box
    """The area between its axes."""

    @property
    def axes(self) -> Mapping[str, Axis]:
        """The axes by name."""

    @property
    def layout(self) -> Mapping[str, Any]:
        """The layout as Plotly has it."""

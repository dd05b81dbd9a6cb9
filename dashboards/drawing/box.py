"""The area of the plot in a drawing, and the interface of a figure that annotations need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dashboards.drawing.axes import Axis


@dataclass(slots=True)
class Box:
    """The area of the plot in a drawing, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Plot(Protocol):
    """A figure that has been laid out."""

    width: float
    """The width of the figure in pixels."""
    height: float
    """The height of the figure in pixels."""
    box: Box
    """The area between the axes."""

    @property
    def axes(self) -> Mapping[str, Axis]:
        """The axes by name."""

    @property
    def layout(self) -> Mapping[str, Any]:
        """The layout, in plotly's JSON."""

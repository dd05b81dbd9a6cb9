"""Figures as static SVG: the bars, lines and points of `dashboards.figures`, drawn without a browser.

Plotly's own way to a static picture, kaleido, needs Chrome on the machine: half a gigabyte, hard to run in CI and
impossible on many servers. Our figures use few features of plotly, so they are drawn here: traces of type bar and
scatter, on linear, logarithmic, date and category axes, with legend, shapes (line, rect) and annotations. Text stays
text, hover texts become tooltips, and colors are classes, so that the page decides between light and dark. Any other
feature raises an error, so that no figure is drawn incompletely.
"""

from dashboards.drawing.pen import css
from dashboards.drawing.sheet import svg

__all__ = ["css", "svg"]

"""Figures as static SVG: the bars, lines and points of `dashboards.figures`, drawn without a browser.

Plotly's export of static images, kaleido, needs Chrome, which takes half a gigabyte, is hard to run in CI, and cannot
run on many servers. Our figures use few features of plotly, so this package draws them: traces of type bar and scatter,
on linear, logarithmic, date and category axes, with legend, shapes (line, rect) and annotations. Text remains text,
hover texts become tooltips, and colors are classes, so that the page selects light or dark. Other types of traces and
shapes raise an error, so that no figure is drawn incompletely.
"""

from dashboards.drawing.pen import css
from dashboards.drawing.sheet import svg

__all__ = ["css", "svg"]

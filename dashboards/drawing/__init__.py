"""Figures as static SVG: the bars, lines and points that `dashboards.figures` makes, drawn without a browser.

Plotly's own way to a static picture, kaleido, needs a Chrome on the machine that makes it: half a gigabyte, and a
process that is hard to have in CI and impossible on many servers. What our figures use of plotly is little, so it is
drawn here: traces of type bar and scatter, on axes that are linear, logarithmic, of dates or of categories, with
legend, shapes (line, rect) and annotations. The text stays text, each mark tells in a tooltip what it says when it is
pointed at, and colours are classes, so that the page says whether it is dark. Anything else in a figure raises, so
that no figure is drawn with something missing.
"""

from dashboards.drawing.pen import css
from dashboards.drawing.sheet import svg

__all__ = ["css", "svg"]

"""Dashboards: pictures of what was recorded. Needs the extra `dashboards` (plotly)."""

"""Figures and sessions for notebooks: each function reads a home and returns a plotly figure, or a session."""

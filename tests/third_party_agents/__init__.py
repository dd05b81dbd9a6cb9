"""Agents of other frameworks, recorded and replayed without changes to the frameworks."""

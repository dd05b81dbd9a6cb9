"""The words about two compared sessions that the command and the page share."""

from __future__ import annotations

NO_IDENTICAL_STEP = "The sessions have no identical step. They may be runs of different tasks."
"""What precedes the comparison of two sessions without an identical step."""

"""Bundles: sessions in one file, for another machine to import; without what was said, unless that was wanted.

A bundle holds the facts of each session (money, spans, events, calls) and can hold its content, with which it can be
frozen and replayed where it is imported. What a bundle cannot carry over is the key of its home: names that are keyed
digests stay as they are, and equal none of the importing home.
"""

from __future__ import annotations

from agentobs.importers.bundle.bundle_import import BundleReport, Taken, import_bundle
from agentobs.importers.bundle.container import FORMAT

__all__ = ["FORMAT", "BundleReport", "Taken", "import_bundle"]

"""Bundles: sessions in one file, for import on another machine; without content unless it was requested.

A bundle holds the facts of each session (costs, spans, events, calls) and optionally its content, with which the
session can be frozen and replayed after the import. The key of the home is not part of a bundle: names that are keyed
digests stay digests, and match none of the importing home.
"""

from __future__ import annotations

from agentobs.importers.bundle.bundle_import import BundleReport, Taken, import_bundle
from agentobs.importers.bundle.container import FORMAT

__all__ = ["FORMAT", "BundleReport", "Taken", "import_bundle"]

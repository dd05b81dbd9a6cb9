"""Bundles: sessions in one file, for import on another machine; without content unless it was requested.

A bundle contains the facts of each session (costs, spans, events, calls). If it also contains the content, the sessions
can be frozen and replayed after the import. The key of the home is not part of a bundle, so names that are keyed
digests stay digests, and they match no names in the importing home.
"""

from __future__ import annotations

from agentobs.importers.bundle.bundle_import import (
    BundleOrigin,
    BundleReport,
    ImportedSession,
    bundle_origin,
    import_bundle,
)
from agentobs.importers.bundle.container import FORMAT

__all__ = [
    "FORMAT",
    "BundleOrigin",
    "BundleReport",
    "ImportedSession",
    "bundle_origin",
    "import_bundle",
]

"""Proxies in this process, for tests: what they forward and what they record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentobs
from agentobs.determinism.entry import Entry
from agentobs.proxy.client_sessions import ClientSessions
from agentobs.proxy.client_variables import Upstream
from agentobs.proxy.command import Ending
from agentobs.proxy.recorded_sessions import client_sessions, close_all
from agentobs.proxy.recording_proxy import Proxy
from agentobs.recording.journal.home import open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange, Recording
from agentobs.runtime import replaced

VERSION = {"anthropic-version": "2023-06-01"}
MESSAGES = "/anthropic/v1/messages"


@dataclass
class Proxied:
    """A proxy, and what it has recorded."""

    proxy: Proxy
    sessions: ClientSessions
    home: Path

    @property
    def url(self) -> str:
        """The base URL for clients of the provider."""
        return f"{self.proxy.url}/anthropic"

    def recordings(self) -> list[Recording]:
        """End the sessions, and return what was recorded, in the order of the sessions' first requests."""
        assert agentobs.flush()
        recorded = self.sessions.sessions()
        close_all(recorded, Ending(0))
        assert agentobs.flush()
        home = open_home(str(self.home))
        segments = segment_ids(home)
        return [read_session(home, each.session_id, segments) for each in recorded]

    def exchanges(self) -> list[ModelExchange]:
        """End the only session, and return its exchanges."""
        [recording] = self.recordings()
        return [each for each in recording.exchanges if isinstance(each, ModelExchange)]


@contextmanager
def proxied(
    upstream: str, home: Path, *, is_default: bool = False, **options: Any
) -> Iterator[Proxied]:
    """Open a proxy in front of `upstream` that records into `home`; more options go to `Proxy`."""
    agentobs.stop_recorder()
    opened = open_home(str(home))
    agentobs.start(str(home))
    sessions = client_sessions(opened, "test", Entry(obstacle={"kind": "proxy"}))
    routes = [Upstream("ANTHROPIC_BASE_URL", "anthropic", upstream, is_default=is_default)]
    with replaced(identifies_callers=False):
        proxy = Proxy(routes, sessions, environment={}, **options)
        try:
            with proxy:
                yield Proxied(proxy, sessions, home)
        finally:
            agentobs.stop_recorder()

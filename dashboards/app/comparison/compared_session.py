"""The facts about one side of a comparison, cached until the data of the session changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from dashboards.app.session_cache import SessionCache
from dashboards.app.site import site_of
from dashboards.app.store_view import Row, View


@dataclass(frozen=True, slots=True)
class ComparedSession:
    """A session that is compared."""

    view: View
    session_id: str
    cache: SessionCache

    @classmethod
    def of(cls, request: Request, view: View, session_id: str) -> ComparedSession:
        """Return a session with its cache."""
        return cls(view, session_id, SessionCache.of(site_of(request).home, view, session_id))

    def rows(self, name: str) -> Sequence[Row]:
        """Return the rows of a named query about the session, as stored."""
        return self.cache.get(
            name,
            lambda: list(self.view.store.rows(name, session_id=self.session_id).dicts()),
        )

    def restored(self, name: str) -> Sequence[Row]:
        """Return the rows of a named query about the session, with the original texts.

        Texts are read each time, because they may be deleted while the rows are cached.
        """
        return self.view.texts.replace_in_dicts(self.rows(name))

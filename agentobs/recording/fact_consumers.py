"""The consumers of facts in this process: the cost meters of sessions, and the backends.

The recorder passes each fact on after the fact was written, or was dropped because of a disk failure: a budget must be
enforced even while the disk is full. A backend that raises an exception is removed; the journal and the other backends
continue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from agentobs import world
from agentobs.errors import warn_once
from agentobs.ledger import Meter
from agentobs.records.backend import (
    Backend,
    WrittenFact,
    backend_kind,
    kinds_of,
    receives,
)
from agentobs.records.facts import UsageRow

BACKENDS_SECONDS = 0.23
"""How long all backends together may take to send their queues when the recorder is closed. Our choice: closing the
recorder then takes less than the documented 250 ms.
"""

KNOWN_KINDS = 1000
"""The maximum number of kinds whose backends are remembered. Our choice."""


class FactConsumers:
    """Passes facts to meters and backends. Any thread may call `meter` and `note_lost`; only the worker thread calls
    `deliver` and `end_session`.
    """

    def __init__(self, backends: tuple[Backend, ...], lost_records: Callable[[str], int]) -> None:
        """Pass facts to `backends`; `lost_records` returns how many records of a session are not in the journal."""
        self._backends = backends
        self._kinds = {id(each): kinds_of(each) for each in backends}
        self._receivers: dict[str, tuple[Backend, ...]] = {}
        """The backends that receive a kind of fact."""
        self._lost_records = lost_records
        self._meters: dict[str, Meter] = {}
        self._seen_results: set[tuple[str, int]] = set()
        self.removed_backends = 0
        """Backends that raised an exception and were removed."""

    def meter(self, session_id: str) -> Meter:
        """Return the meter that adds up the costs of a session while it is recorded."""
        if session_id not in self._meters:
            meter = self._meters.setdefault(session_id, Meter(seen=self._seen_results))
            if lost := self._lost_records(session_id):
                meter.add_lost_records(lost)
        return self._meters[session_id]

    def deliver(self, session_id: str, facts: Sequence[WrittenFact]) -> None:
        """Add the usage among the facts of a session to its meter, and pass each fact to the backends that name its
        kind.
        """
        meter = self._meters.get(session_id)
        for each in facts:
            if meter is not None and isinstance(each.fact, UsageRow):
                meter.add_facts((each.fact,))
            if self._backends:
                for backend in self._receivers_of(backend_kind(each.fact)):
                    self._deliver_to(backend, each)

    def note_lost(self, session_id: str, records: int) -> None:
        """Note that the costs of a session are a lower bound, because this number of its records is missing."""
        if meter := self._meters.get(session_id):
            meter.add_lost_records(records)

    def end_session(self, session_id: str) -> None:
        """Forget the meter of a session that has ended."""
        self._meters.pop(session_id, None)

    def reset_in_child(self) -> None:
        """In a child process, replace the locks of the meters, which another thread of the parent may have held."""
        for meter in self._meters.values():
            meter.reset_lock()

    def close(self) -> None:
        """Close each backend that has a method `close`, within an equal share of the remaining time."""
        closing = [close for each in self._backends if (close := getattr(each, "close", None))]
        deadline = world.monotonic() + int(BACKENDS_SECONDS * 1e9)
        for remaining, close in zip(range(len(closing), 0, -1), closing, strict=True):
            try:
                close(max(deadline - world.monotonic(), 0) / 1e9 / remaining)
            except Exception as error:
                _warn_of(close, error)

    def _receivers_of(self, kind: str) -> tuple[Backend, ...]:
        found = self._receivers.get(kind)
        if found is None:
            found = tuple(b for b in self._backends if receives(self._kinds[id(b)], kind))
            if len(self._receivers) < KNOWN_KINDS:
                self._receivers[kind] = found
        return found

    def _deliver_to(self, backend: Backend, fact: WrittenFact) -> None:
        try:
            backend(fact)
        except Exception as error:
            self._backends = tuple(each for each in self._backends if each is not backend)
            self._receivers.clear()
            self.removed_backends += 1
            _warn_of(backend, error)


def _warn_of(backend: object, error: Exception) -> None:
    with contextlib.suppress(Exception):  # reading the class of an error may raise an exception
        warn_once(
            f"a backend failed and was removed: {type(error).__name__}. The agent and its recording continue.",
            about=f"backend {id(backend)}",
        )

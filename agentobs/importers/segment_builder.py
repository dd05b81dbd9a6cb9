"""Segment builder: converts foreign records into the lines of a segment, like a recorder.

All imported data passes the same interpreter: secrets are removed, facts contain labels and numbers, and views,
costs and signatures apply as for local recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segment_import import Landed
from agentobs.records.facts import TABLES, Fact, columns
from agentobs.sink import Record


def retold(
    home: Home,
    records: Iterable[Record],
    change: Callable[[Fact], Fact] = lambda fact: fact,
    *,
    session_id: str = "",
    lost: int = 0,
) -> Iterator[Landed]:
    """Yield the lines of a segment for some records, content before the facts that refer to it.

    Args:
        home: its key is used for labels.
        records: in time order; the last is the session's end.
        change: removes facts that are unknown for foreign sessions.
        session_id: the session that has lost records.
        lost: how many of its records are missing, which its end then states.
    """
    interpreter = Interpreter(home.key())
    if lost:
        interpreter.lose(session_id, lost)
    for record in records:
        interpretation = interpreter.interpret(record)
        for kind, line in interpretation.contents:
            yield Landed(kind, line, is_content=True)
        for told in interpretation.told:
            fact = change(told.fact)
            row = {**columns(fact), "session_sequence": told.sequence}
            yield Landed(TABLES[type(fact)], row, is_content=False)

"""Segment builder: converts foreign records into the lines of a segment, like a recorder.

All imported data passes the same interpreter: secrets are removed, facts contain labels and numbers, and views,
costs and signatures apply as for local recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segment_import import ImportedLine
from agentobs.records.facts import TABLES, Fact, columns
from agentobs.sink import Record


def segment_lines(
    home: Home,
    records: Iterable[Record],
    change: Callable[[Fact], Fact] = lambda fact: fact,
    *,
    session_id: str = "",
    lost: int = 0,
) -> Iterator[ImportedLine]:
    """Yield the lines of a segment with the given records. Content precedes the facts that refer to it.

    Args:
        home: the home whose key is used for labels.
        records: the records in time order; the last record is the end of the session.
        change: a function that replaces each fact, for example to remove values that foreign files do not contain.
        session_id: the ID of the session if `lost` is not 0.
        lost: the number of missing records, which is recorded at the end of the session.
    """
    interpreter = Interpreter(home.key())
    if lost:
        interpreter.lose(session_id, lost)
    for record in records:
        interpretation = interpreter.interpret(record)
        for kind, line in interpretation.contents:
            yield ImportedLine(kind, line, is_content=True)
        for written in interpretation.facts:
            fact = change(written.fact)
            row = {**columns(fact), "session_sequence": written.sequence}
            yield ImportedLine(TABLES[type(fact)], row, is_content=False)

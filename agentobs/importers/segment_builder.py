"""Retelling: what ran elsewhere becomes the lines of a segment, read as a recorder would have read it.

Whatever is imported passes the one interpreter: its secrets are taken out, its facts are labels and numbers, and views,
money and signatures hold for it as for what was recorded here.
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
    """Yield the lines of a segment that tells of some records, content before the facts that name it.

    Args:
        home: whose key labels are made with.
        records: in the order of time; the last is the session's end.
        change: takes back what is not known of something that ran elsewhere.
        session_id: the session of which something is lost.
        lost: how many records of it are missing, which its end then says.
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

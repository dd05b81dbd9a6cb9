"""Late facts: facts about a session that has ended, or that another process records.

They are written to a separate segment, so that no open segment is changed. A store that is rebuilt reads them like
all other records.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment
from agentobs.recording.vault.encryption import Sealer, content_key
from agentobs.records.facts import TABLES, Fact, columns


def write_late_facts(home: Home, session_id: str, content: str, facts: Iterable[Fact]) -> None:
    """Write facts of one session to a new segment, and their texts to its content file.

    Args:
        home: the home of the session.
        session_id: the full ID of the session.
        content: the content mode of the session; if it is `off`, no text is written.
        facts: the facts.

    Raises:
        OSError: the segment cannot be written.
        UsageError: the key that encrypts content cannot be used.
    """
    key = content_key()
    interpreter = Interpreter(home.key())
    interpreter.join(session_id, content)
    segment = Segment(home)
    try:
        sealer = Sealer(key, segment.segment_id) if key is not None else None
        for fact in facts:
            interpretation = interpreter.interpret(fact)
            for kind, line in interpretation.contents:
                number = segment.content.sequence + 1
                sealed = line if sealer is None else sealer.seal(kind, line, number)
                segment.content.append(kind, sealed)
            for written in interpretation.facts:
                row = {**columns(written.fact), "session_sequence": None}
                segment.facts.append(TABLES[type(written.fact)], row)
    finally:
        segment.close()


__all__ = ["write_late_facts"]

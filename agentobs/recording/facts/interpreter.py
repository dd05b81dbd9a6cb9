"""The interpreter: splits each record into facts without content, and content.

Every string in a fact is a label or an ID, whatever the record contains: a string that is not proven
to be one is replaced by its keyed digest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from agentobs import world
from agentobs.determinism.jobs import take_ended
from agentobs.provider.content_encoding import decoded
from agentobs.provider.registry import dialect_of
from agentobs.recording.facts.derivation import SessionView
from agentobs.recording.facts.fact_places import placed
from agentobs.recording.facts.prompt_prefixes import Prefixes
from agentobs.recording.vault.body_deltas import Bodies, Body
from agentobs.recording.vault.content_lines import (
    bare,
    end_content,
    jobs_content,
    request_content,
    request_head,
    response_content,
    result_digest,
    start_content,
    started_with,
    tool_content,
    world_content,
)
from agentobs.recording.vault.partial_responses import Begun
from agentobs.recording.vault.vault import pieces_of, text_bytes
from agentobs.recording.wire.credentials import Credentials
from agentobs.records.backend import Said, Told
from agentobs.records.canonical_json import canonical
from agentobs.records.event_catalog import is_kept
from agentobs.records.exchanges import (
    ModelExchange,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
    is_beside,
)
from agentobs.records.facts import (
    DECLARED,
    TABLES,
    Attempt,
    Event,
    Fact,
    InteractionEnd,
    InteractionStart,
    SessionEnd,
    ToolResult,
    settled,
)
from agentobs.records.labels import Label, is_label, label, unchecked
from agentobs.redaction import Redactor, Rule
from agentobs.sink import Record, session_of

KNOWN_LABELS = 4096
"""How many labels are cached; beyond it the oldest is forgotten, and checked again."""
KNOWN_SESSIONS = 10_000
"""For how many sessions it is remembered which facts count and where their content may go."""

ContentLine = tuple[str, dict[str, Any]]
"""The kind of a content line, and its payload."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """The facts of one record."""

    session_id: str
    contents: tuple[ContentLine, ...]
    """Lines of the content file, to be written before the facts that refer to them."""
    told: tuple[Told, ...]
    """The facts, in order."""
    is_whole: bool = True
    """Whether the record is complete; records with bodies that were too long are not."""
    so_far: tuple[Told, ...] = ()
    """Facts that count only if the record never ends."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """A record taken apart."""

    contents: Sequence[ContentLine]
    facts: Iterable[Fact]
    said: Said | None = None
    """The content, if it may be passed on."""
    is_whole: bool = True


class Interpreter:
    """Converts the records of one process into facts."""

    def __init__(
        self,
        key: bytes,
        rules: Sequence[Rule] = (),
        sampling: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Create labels and find secrets with the home's `key`; `rules` find custom secrets.

        `sampling` is the share of events to keep, by kind.
        """
        self._key, self._sampling = key, dict(sampling)
        self.redactor = Redactor(key, rules)
        """Removes secrets from everything that is written, and counts texts that could not be searched."""
        self._modes: dict[str, str] = {}
        self._sequences: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self.forked()

    def forked(self) -> None:
        """In a child process, forget the state of the parent's sessions."""
        self._views: dict[str, SessionView] = {}
        self._bodies: dict[str, Bodies] = {}
        self._labels: dict[str, Label] = {}
        self._clean: dict[Label, None] = {}
        """Labels that were searched and contain no secret."""
        self._results: dict[str, InteractionEnd] = {}
        self._begun: dict[str, Begun] = {}
        """The exchanges that have not ended and of which a part is written, by attempt."""
        self._beside: set[str] = set()
        """Interactions of background agents: their outcome does not decide that of their session."""
        self._credentials = Credentials()
        self._lost.clear()

    def forget_bodies(self) -> None:
        """Let no later body refer to an earlier one, because a new segment starts or a body was not written."""
        for bodies in self._bodies.values():
            bodies.forget()
        self._begun.clear()

    def lose(self, session_id: str, records: int = 1) -> None:
        """Remember that a record of a session is not in the journal."""
        self._lost[session_id] = self._lost.get(session_id, 0) + records

    def lost(self, session_id: str) -> int:
        """Return how many records of a session are not in the journal."""
        return self._lost.get(session_id, 0)

    def join(self, session_id: str, content: str) -> None:
        """Set where the content of a session may go that another process has started."""
        _remember(self._modes, session_id, content)

    def interpret(self, record: Record) -> Interpretation:
        """Return the facts and the content of a record."""
        session_id = session_of(record)
        if isinstance(record, SessionCall):
            _remember(self._modes, session_id, str(record.start.content))
        mode = self._modes.get(session_id, "vault")
        parts = self._taken_apart(record, mode)
        answered = Attempt if isinstance(record, ModelExchange) else ToolResult
        told = []
        for fact in placed(parts.facts, record):
            sequence = self._sequences.get(session_id, 0) + 1
            _remember(self._sequences, session_id, sequence)
            said = parts.said if isinstance(fact, answered) else None
            if (kept := self._sampled(self._checked(fact), sequence)) is not None:
                told.append(Told(kept, sequence, said))
        return Interpretation(session_id, tuple(parts.contents), tuple(told), parts.is_whole)

    def _sampled(self, fact: Fact, sequence: int) -> Fact | None:
        """Return a fact, an event with its sampling rate; None if the event is not sampled."""
        if not isinstance(fact, Event) or fact.kind not in self._sampling:
            return fact
        rate = float(self._sampling[fact.kind])
        if not is_kept(fact.session_id, sequence, rate):
            return None
        return dataclasses.replace(fact, rate=rate)

    def so_far(self, exchange: ModelExchange) -> Interpretation | None:
        """Return what to write of an exchange that has not ended; None if there is nothing new."""
        exchange = bare(exchange, self.redactor)
        session_id, attempt_id = exchange.place.session_id, exchange.attempt_id
        mode = self._modes.get(session_id, "vault")
        contents: list[ContentLine] = []
        begun = self._begun.get(attempt_id)
        if begun is None:
            begun = self._begun[attempt_id] = self._begin(exchange)
            begun.come.keeps = mode != "off"
            contents += _kept("request", begun.asked, mode)
        begun.come.hear(exchange.answer)
        if mode != "off" and (piece := begun.piece(exchange)) is not None:
            contents.append(("partial", piece))
        told: list[Told] = []
        if not begun.is_counted:
            ids = _content_id(begun.asked, mode), None if mode == "off" else pieces_of(attempt_id)
            facts = list(self._view(session_id).so_far(begun.head(exchange), begun.body, ids))
            if begun.is_news(facts):
                told = [Told(self._checked(fact), 0) for fact in facts]
        if not (contents or told):
            return None
        return Interpretation(session_id, tuple(contents), (), so_far=tuple(told))

    def _begin(self, exchange: ModelExchange) -> Begun:
        self._credentials.learn(exchange.place.session_id, exchange.secrets)
        bodies = self._bodies.setdefault(exchange.place.session_id, Bodies(self.redactor))
        head = canonical(request_head(exchange, self.redactor)).encode("utf-8", "surrogatepass")
        dialect = dialect_of(exchange.question.path)
        body = bodies.add(exchange.question.body, exchange.secrets, head, dialect)
        asked = request_content(exchange, body, self.redactor)
        return Begun(exchange.attempt_id, body, asked, self.redactor)

    def label(self, text: str) -> Label:
        """Return a label of a name; a secret or a text that cannot be a label becomes a digest."""
        known = self._labels.get(text)
        if known is None:
            known = label(self.redactor.redact_text(text), self._key)
            _remember(self._labels, text, known, KNOWN_LABELS)
            _remember(self._clean, known, None, KNOWN_LABELS)
        return known

    def _without_secret(self, given: Label) -> Label:
        """Return a label unchanged, or its digest if it looks like a secret: a person may have chosen the name."""
        if given in self._clean:
            return given
        told = self.redactor.redact_text(given)
        known = given if told == given else label(told, self._key)
        _remember(self._clean, known, None, KNOWN_LABELS)
        return known

    def _taken_apart(self, record: Record, mode: str) -> _Parts:
        match record:
            case ModelExchange():
                return self._attempt(record, mode)
            case ToolExchange():
                line = tool_content(record, self.redactor)
                view = self._view(record.place.session_id)
                facts = view.tool(record, _content_id(line, mode))
                said = _said_of_tool(line) if mode == "export" else None
                return _Parts(_kept("tool", line, mode), facts, said)
            case WorldExchange():
                line = world_content(record, self.redactor)
                view = self._view(record.place.session_id)
                fact = view.world(record, _content_id(line, mode))
                return _Parts(_kept("world", line, mode), (fact,))
            case SessionCall():
                line = start_content(record, self.redactor)
                content_id = _content_id(line, mode)
                start = dataclasses.replace(record.start, arguments_content=content_id)
                self._credentials.begin(record.start.session_id, text_bytes(line))
                return _Parts(_kept("start", line, mode), (start,))
            case SessionEnd() | SessionReturn():
                return self._end(record, mode)
            case Event() if lost := _lost_exchanges(record):
                # An incomplete record counts as one loss.
                self._lost[record.session_id] = self.lost(record.session_id) + lost - 1
                return _Parts((), (record,), is_whole=False)
            case _:
                self._heard(record)
                return _Parts((), (record,))

    def _attempt(self, exchange: ModelExchange, mode: str) -> _Parts:
        exchange = decoded(bare(exchange, self.redactor))
        session_id = exchange.place.session_id
        begun = self._begun.pop(exchange.attempt_id, None)
        is_asked = begun is not None
        begun = begun or self._begin(exchange)
        asked, answered = begun.asked, response_content(exchange, self.redactor)
        contents = (_content_id(asked, mode), _content_id(answered, mode))
        facts = self._view(session_id).attempt(exchange, begun.body, contents)
        said = None
        if mode == "export":
            said = self._said(session_id, begun.body, answered)
        asked_lines = () if is_asked else _kept("request", asked, mode)
        lines = (*asked_lines, *_kept("response", begun.rest(answered), mode))
        return _Parts(lines, facts, said, not exchange.lost_bytes)

    def _said(self, session_id: str, body: Body, answered: dict[str, Any]) -> Said | None:
        """Return the content; None if so many requests have started since that this one is not in memory any more."""
        try:
            return Said(self._bodies[session_id].written(body.content_id), text_bytes(answered))
        except KeyError:
            return None

    def _end(self, record: SessionEnd | SessionReturn, mode: str) -> _Parts:
        """Process the end of a session; if its name or arguments contain a credential, return them redacted as well."""
        session_id = session_of(record)
        secrets, written = self._credentials.of(session_id), self._credentials.start_of(session_id)
        started = started_with(written, self.redactor, secrets) if written is not None else None
        self._credentials.forget(session_id)
        jobs_lines = _ended_jobs(session_id, mode)
        if isinstance(record, SessionEnd):
            if started is None and not self._has_secret(record, secrets):
                return _Parts(jobs_lines, self._ended(record))
            record = SessionReturn(record)
        line = end_content(record, self.redactor, secrets, started)
        return _Parts(
            (*jobs_lines, *_kept("end", line, mode)),
            self._ended(self._end_of(record, line, mode, secrets)),
        )

    def _has_secret(self, end: SessionEnd, secrets: Sequence[bytes]) -> bool:
        """Return whether the end of a session without content contains a credential."""
        if not secrets:
            return False
        told = "\n".join(each for each in (end.reason, end.signature) if each is not None)
        return self.redactor.redact_text(told, secrets) != told

    def _end_of(
        self, record: SessionReturn, line: Mapping[str, Any], mode: str, secrets: Sequence[bytes]
    ) -> SessionEnd:
        """Return the fact of a session's end, with the digests that stand for its content."""
        reason, signature, type_name = (
            each if each is None else self.redactor.redact_text(each, secrets)
            for each in (
                record.end.reason,
                record.end.signature,
                record.result.type if record.result is not None else None,
            )
        )
        if signature is not None and signature.startswith(DECLARED):
            declared = self.label(signature.removeprefix(DECLARED))
            signature = f"{DECLARED}{declared}"
        return dataclasses.replace(
            record.end,
            reason=unchecked(reason) if reason is not None else None,
            signature=unchecked(signature) if signature is not None else None,
            end_content=_content_id(line, mode),
            result_digest=result_digest(record, self.redactor, secrets),
            result_type=unchecked(type_name) if type_name is not None else None,
        )

    def _ended(self, end: SessionEnd) -> Iterator[Fact]:
        """Yield the ends of everything that is open, and the end of the session: its losses, and whether its last
        interaction failed.
        """
        session_id = end.session_id
        yield from self._view(session_id).ended(end.ended_ns)
        self._views.pop(session_id, None)
        self._bodies.pop(session_id, None)
        for each in [e for e in self._begun.values() if e.asked["session_id"] == session_id]:
            del self._begun[each.attempt_id]
        end = settled(end, self._results.pop(session_id, None))
        yield dataclasses.replace(end, dropped=self._lost.pop(session_id, 0))

    def _heard(self, record: Fact) -> None:
        if isinstance(record, InteractionStart) and is_beside(record.lane):
            self._beside.add(record.interaction_id)
        elif isinstance(record, InteractionEnd) and record.interaction_id in self._beside:
            self._beside.discard(record.interaction_id)
        elif isinstance(record, InteractionEnd):
            self._results[record.session_id] = record

    def _view(self, session_id: str) -> SessionView:
        if session_id not in self._views:
            self._views[session_id] = SessionView(
                session_id, self.label, world.new_id, Prefixes(self._key)
            )
        return self._views[session_id]

    def _checked(self, fact: Fact) -> Fact:
        """Return a fact in which every string is a label or an ID, and no label looks like a secret."""
        changed: dict[str, Any] = {}
        clean = self._clean
        for name in _TEXTS[type(fact)]:
            value = getattr(fact, name)
            if value is None or (type(value) is Label and value in clean):
                continue
            if isinstance(value, Mapping):
                if type(value) is not dict or not _is_clean(value, clean):
                    changed[name] = {self._word(k): self._word(v) for k, v in value.items()}
            elif isinstance(value, Label):
                if (told := self._without_secret(value)) is not value:
                    changed[name] = told
            elif name not in _IDS[type(fact)] or not is_label(value):
                changed[name] = self.label(value)
        return dataclasses.replace(fact, **changed) if changed else fact

    def _word(self, value: Any) -> Any:
        if isinstance(value, Label):
            return self._without_secret(value)
        return self.label(value) if isinstance(value, str) else value


def _lost_exchanges(event: Event) -> int:
    """Return how many exchanges the sink could not keep before the recorder was attached."""
    return int(event.numbers.get(Label("exchanges"), 0)) if event.kind == "drop" else 0


def _is_clean(named: dict[Any, Any], clean: Mapping[Label, None]) -> bool:
    """Return whether all names and texts of a mapping are labels that have been checked."""
    for name, value in named.items():
        if type(name) is not Label or name not in clean:
            return False
        if isinstance(value, str) and (type(value) is not Label or value not in clean):
            return False
    return True


def _content_id(line: Mapping[str, Any], mode: str) -> str | None:
    return None if mode == "off" else str(line["content_id"])


def _ended_jobs(session_id: str, mode: str) -> tuple[ContentLine, ...]:
    ended = take_ended(session_id)
    return _kept("jobs", jobs_content(session_id, ended), mode) if ended else ()


def _kept(kind: str, line: dict[str, Any], mode: str) -> tuple[ContentLine, ...]:
    return () if mode == "off" else ((kind, line),)


def _said_of_tool(line: Mapping[str, Any]) -> Said:
    call = json.loads(text_bytes(dict(line)))
    asked, answered = (json.dumps(call[part], ensure_ascii=False) for part in ("input", "result"))
    return Said(*(text.encode("utf-8", "surrogatepass") for text in (asked, answered)))


def _remember(known: dict[Any, Any], key: str, value: Any, most: int = KNOWN_SESSIONS) -> None:
    """Set a key, and forget the oldest one beyond the limit."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


def _has_text(hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, str)
    arguments = [each for each in get_args(hint) if not isinstance(each, str)]
    return any(_has_text(each) for each in arguments)


_HINTS = {kind: get_type_hints(kind) for kind in TABLES}
_TEXTS = {
    kind: tuple(name for name, hint in hints.items() if _has_text(hint))
    for kind, hints in _HINTS.items()
}
"""The fields of each kind of fact that hold text, alone or in a mapping; fields of closed enums cannot hold any."""
_IDS = {
    kind: frozenset(n for n in _TEXTS[kind] if Label not in (hints[n], *get_args(hints[n])))
    for kind, hints in _HINTS.items()
}
"""Fields that hold IDs of agentobs."""

__all__ = ["Interpretation", "Interpreter", "session_of"]

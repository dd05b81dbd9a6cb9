"""The interpreter: splits each record into facts without content, and content.

Every string in a fact is a label or an ID, regardless of the record's content: a string that is not proven to be a
label is replaced by its keyed digest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from agentobs import world
from agentobs.determinism.session_inheritance import joined
from agentobs.provider.content_encoding import decoded
from agentobs.provider.registry import dialect_of, terms
from agentobs.recording.facts.derivation import SessionView
from agentobs.recording.facts.fact_places import placed
from agentobs.recording.facts.prompt_prefixes import Prefixes
from agentobs.recording.vault.body_deltas import Bodies, Body
from agentobs.recording.vault.content_lines import (
    effect_content,
    end_content,
    label_content,
    request_content,
    request_metadata,
    response_content,
    result_digest,
    start_content,
    start_without_credentials,
    tool_content,
    with_clean_headers,
    world_content,
)
from agentobs.recording.vault.partial_responses import PartialExchange
from agentobs.recording.vault.stored_lines import ContentLine, content_id, ended_jobs, stored
from agentobs.recording.vault.vault import parts_id, text_bytes
from agentobs.recording.wire.credentials import Credentials
from agentobs.records.backend import ExchangeContent, WrittenFact
from agentobs.records.canonical_json import canonical
from agentobs.records.clear_text import (
    ID_FIELDS,
    LANE_FIELDS,
    RULES,
    is_claude_model,
    is_declared_model,
    is_declared_name,
    is_lane_segment,
    is_noted_count,
    is_noted_reason,
    is_own_id,
    may_stay,
    type_label,
)
from agentobs.records.event_sampling import is_kept
from agentobs.records.exchanges import (
    ModelExchange,
    ObservedEffect,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
    has_parent_lane,
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
    SessionStart,
    SessionTitle,
    ToolResult,
    settled,
)
from agentobs.records.labels import Label, digest_label, is_label, prefixed, unchecked
from agentobs.records.record_factory import maker
from agentobs.redaction import Redactor, Rule
from agentobs.sink import Record, session_of

KNOWN_LABELS = 4096
"""The maximum number of labels that are cached; beyond this number, the oldest label is forgotten and must be checked
again. Our choice.
"""
KNOWN_SESSIONS = 10_000
"""The maximum number of sessions whose content mode and last fact number are remembered. Our choice."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """The facts and the content of one record."""

    session_id: str
    contents: tuple[ContentLine, ...]
    """Lines of the content file, to be written before the facts that refer to them."""
    facts: tuple[WrittenFact, ...]
    """The facts, in order."""
    is_complete: bool = True
    """Whether the record is complete; a record whose body was too long is incomplete."""
    drafts: tuple[WrittenFact, ...] = ()
    """Facts of an exchange in progress, which are valid if it never ends."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a record before its facts are checked."""

    contents: Sequence[ContentLine]
    facts: Iterable[Fact]
    content: ExchangeContent | None = None
    """The content, if backends may receive it."""
    is_complete: bool = True


class Interpreter:
    """Converts the records of one process into facts."""

    def __init__(
        self,
        key: bytes,
        rules: Sequence[Rule] = (),
        sampling: Mapping[str, float] = MappingProxyType({}),
        pause_if_due: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an interpreter for the records of a process.

        Args:
            key: the home's key, for digests.
            rules: custom redaction rules.
            sampling: the share of events to keep, by kind.
            pause_if_due: called between the steps of an exchange, which may take long.
        """
        self._key, self._sampling = key, dict(sampling)
        self._pause_if_due = pause_if_due
        self.redactor = Redactor(key, rules)
        """Removes secrets from everything that is written, and counts texts that could not be searched."""
        self._modes: dict[str, str] = {}
        """The content mode of each session."""
        self._sequences: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self._terms = terms()
        self.reset_in_child()

    def reset_in_child(self) -> None:
        """In a child process, forget the state of the parent's sessions."""
        self._views: dict[str, SessionView] = {}
        self._bodies: dict[str, Bodies] = {}
        self._labels: dict[str, Label] = {}
        self._readable: dict[tuple[type, str, str], Label] = {}
        """Texts that stay readable in a field of a fact, and were searched for secrets."""
        self._declared: dict[str, set[str]] = {}
        """The names of tools and models that the requests of each session declare."""
        self._told: dict[tuple[str, str], None] = {}
        """The digests whose texts are in the content of a session, in the current segment."""
        self._clean: dict[Label, None] = {}
        """Labels that were searched and contain no secret."""
        self._results: dict[str, InteractionEnd] = {}
        self._partial: dict[str, PartialExchange] = {}
        """The exchanges that have not ended, and whose first part is written, by attempt."""
        self._background: set[str] = set()
        """Interactions of background agents, whose outcome does not decide the outcome of their session."""
        self._credentials = Credentials()
        self._lost.clear()

    def forget_bodies(self) -> None:
        """Forget earlier bodies, because a segment starts or a write failed; later bodies do not refer to them."""
        for bodies in self._bodies.values():
            bodies.forget()
        self._partial.clear()
        self._told.clear()
        for view in self._views.values():
            view.forget_drafts()

    def lose(self, session_id: str, records: int = 1) -> None:
        """Remember that records of a session are not in the journal."""
        self._lost[session_id] = self._lost.get(session_id, 0) + records

    def lost(self, session_id: str) -> int:
        """Return how many records of a session are not in the journal."""
        return self._lost.get(session_id, 0)

    def join(self, session_id: str, content: str) -> None:
        """Set the content mode of a session that another process has started."""
        _remember(self._modes, session_id, content)

    def interpret(self, record: Record) -> Interpretation:
        """Return the facts and the content of a record."""
        session_id = session_of(record)
        if isinstance(record, SessionCall):
            _remember(self._modes, session_id, str(record.start.content))
        mode = self._modes.get(session_id, "vault")
        secrets = self._credentials.of(session_id)
        parts = self._split(record, mode)
        # The end of a session removes its credentials, but its texts may still contain them.
        secrets = self._credentials.of(session_id) or secrets
        texts: dict[str, str] = {}
        with_content = Attempt if isinstance(record, ModelExchange) else ToolResult
        facts = [
            dataclasses.replace(each, content=parts.content)
            if parts.content is not None and isinstance(each.fact, with_content)
            else each
            for each in self._numbered(session_id, placed(parts.facts, record), texts)
        ]
        contents = (*parts.contents, *self._label_lines(session_id, texts, mode, secrets))
        return Interpretation(session_id, contents, tuple(facts), parts.is_complete)

    def _numbered(
        self, session_id: str, facts: Iterable[Fact], texts: dict[str, str]
    ) -> Iterator[WrittenFact]:
        """Yield the facts of a session as they are written; `texts` is extended as in `_checked`."""
        for fact in facts:
            sequence = self._sequences.get(session_id, 0) + 1
            _remember(self._sequences, session_id, sequence)
            if (kept := self._sampled(self._checked(fact, texts), sequence)) is not None:
                yield WrittenFact(kept, sequence)

    def _label_lines(
        self, session_id: str, texts: Mapping[str, str], mode: str, secrets: Sequence[bytes]
    ) -> Iterator[ContentLine]:
        """Yield a content line for each text of a session that a digest replaces for the first time."""
        if mode == "off":
            return
        for digest, text in texts.items():
            if (session_id, digest) not in self._told:
                _remember(self._told, (session_id, digest), None)
                clean = self.redactor.redact_text(text, secrets)
                yield "label", label_content(session_id, digest, clean)

    def _sampled(self, fact: Fact, sequence: int) -> Fact | None:
        """Return a fact, with its sampling rate if it is a sampled event; None if it is an event that is not in the
        sample.
        """
        if not isinstance(fact, Event) or fact.kind not in self._sampling:
            return fact
        rate = float(self._sampling[fact.kind])
        if not is_kept(fact.session_id, sequence, rate):
            return None
        return dataclasses.replace(fact, rate=rate)

    def interpret_partial(self, exchange: ModelExchange) -> Interpretation | None:
        """Return the new content, facts and drafts of an exchange in progress; None if there is nothing new to write.

        Only a stream of the events of a managed agent has facts before it ends.
        """
        exchange = with_clean_headers(exchange, self.redactor)
        session_id, attempt_id = exchange.place.session_id, exchange.attempt_id
        mode = self._modes.get(session_id, "vault")
        contents: list[ContentLine] = []
        partial = self._partial.get(attempt_id)
        if partial is None:
            partial = self._partial[attempt_id] = self._start_partial(exchange)
            partial.response.keeps_body = mode != "off"
            contents += stored("request", partial.request_line, mode)
            self._pause_if_due()
        partial.response.receive(exchange.answer)
        if mode != "off" and (part := partial.next_part(exchange)) is not None:
            contents.append(("partial", part))
            self._pause_if_due()
        view, texts = self._view(session_id), dict[str, str]()
        facts = list(placed(view.agent_events(exchange, partial.body), exchange))[1:]
        drafts = list(view.agent_drafts())
        if partial.may_have_new_drafts(exchange):
            ids = (
                content_id(partial.request_line, mode),
                None if mode == "off" else parts_id(attempt_id),
            )
            started = partial.with_first_chunks(exchange)
            own_drafts = list(view.drafts(started, partial.body, ids))
            drafts += own_drafts if partial.note_drafts(own_drafts) else []
        written = tuple(self._numbered(session_id, facts, texts))
        written_drafts = tuple(WrittenFact(self._checked(fact, texts), 0) for fact in drafts)
        secrets = self._credentials.of(session_id)
        contents += self._label_lines(session_id, texts, mode, secrets)
        if not (contents or written or written_drafts):
            return None
        return Interpretation(session_id, tuple(contents), written, drafts=written_drafts)

    def _start_partial(self, exchange: ModelExchange) -> PartialExchange:
        """Process the request of an exchange."""
        self._credentials.add(exchange.place.session_id, exchange.secrets)
        bodies = self._bodies.setdefault(exchange.place.session_id, Bodies(self.redactor))
        metadata = request_metadata(exchange, self.redactor)
        body = bodies.add(
            exchange.question.body,
            exchange.secrets,
            canonical(metadata).encode("utf-8", "surrogatepass"),
            dialect_of(exchange.question.path),
        )
        self._declare(exchange, body)
        line = request_content(exchange, body, metadata)
        return PartialExchange(exchange.attempt_id, body, line, self.redactor)

    def _declared_in(self, session_id: str) -> set[str]:
        """Return the terms of the providers, and the names that the requests of a session declare."""
        if session_id not in self._declared:
            _remember(self._declared, session_id, set(self._terms))
        return self._declared[session_id]

    def _declare(self, exchange: ModelExchange, body: Body) -> None:
        """Remember the names of the tools and of other things that a request declares."""
        dialect = dialect_of(exchange.question.path)
        named = body.settings.get("model") or dialect.model_in(exchange.question.path)
        names = dialect.declared_names(body.settings)
        known = self._declared_in(exchange.place.session_id)
        if len(known) < KNOWN_LABELS:
            known.update(each for each in names if is_declared_name(each))
            if isinstance(named, str) and is_declared_model(named):
                known.add(named)

    def digest(self, text: str) -> Label:
        """Return the keyed digest of a text without secrets."""
        known = self._labels.get(text)
        if known is None:
            known = digest_label(self.redactor.redact_text(text), self._key)
            _remember(self._labels, text, known, KNOWN_LABELS)
            _remember(self._clean, known, None, KNOWN_LABELS)
        return known

    def _without_secret(self, name: Label) -> Label:
        """Return a label unchanged, or a digest if the label looks like a secret, because users choose some labels."""
        if name in self._clean:
            return name
        redacted = self.redactor.redact_text(name)
        known = name if redacted == name else digest_label(redacted, self._key)
        _remember(self._clean, known, None, KNOWN_LABELS)
        return known

    def _split(self, record: Record, mode: str) -> _Parts:
        match record:
            case ModelExchange():
                return self._attempt(record, mode)
            case ToolExchange():
                line = tool_content(record, self.redactor)
                view = self._view(record.place.session_id)
                facts = view.tool(record, content_id(line, mode))
                content = _tool_exchange_content(line) if mode == "export" else None
                return _Parts(stored("tool", line, mode), facts, content)
            case WorldExchange():
                line = world_content(record, self.redactor)
                view = self._view(record.place.session_id)
                fact = view.world(record, content_id(line, mode))
                return _Parts(stored("world", line, mode), (fact,))
            case ObservedEffect():
                return self._effect(record, mode)
            case SessionCall():
                line = start_content(record, self.redactor)
                written_id = content_id(line, mode)
                start = dataclasses.replace(record.start, arguments_content=written_id)
                self._credentials.begin(record.start.session_id, text_bytes(line))
                return _Parts(stored("start", line, mode), (start,))
            case SessionEnd() | SessionReturn():
                return self._end(record, mode)
            case Event() if lost := _lost_exchanges(record):
                # The recorder counts one lost record for every incomplete record, so this record is not counted here.
                self._lost[record.session_id] = self.lost(record.session_id) + lost - 1
                return _Parts((), (record,), is_complete=False)
            case SessionTitle() if mode == "off":
                return _Parts((), ())  # a title is content
            case _:
                self._follow_interactions(record)
                return _Parts((), (record,))

    def _effect(self, record: ObservedEffect, mode: str) -> _Parts:
        fact, secrets = record.fact, self._credentials.of(record.fact.session_id)
        lines: tuple[ContentLine, ...] = ()
        if record.content is not None and mode != "off":
            line = effect_content(record, self.redactor, secrets)
            fact, lines = dataclasses.replace(fact, content=line["content_id"]), (("effect", line),)
        return _Parts(lines, (fact, *self._view(fact.session_id).effects.effect(record)))

    def _attempt(self, exchange: ModelExchange, mode: str) -> _Parts:
        exchange = decoded(with_clean_headers(exchange, self.redactor))
        session_id = exchange.place.session_id
        partial = self._partial.pop(exchange.attempt_id, None)
        is_request_written = partial is not None
        if partial is None:
            partial = self._start_partial(exchange)
            self._pause_if_due()
        request, response = partial.request_line, response_content(exchange, self.redactor)
        self._pause_if_due()
        contents = (content_id(request, mode), content_id(response, mode))
        facts = tuple(self._view(session_id).attempt(exchange, partial.body, contents))
        self._pause_if_due()
        content = None
        if mode == "export":
            content = self._exchange_content(session_id, partial.body, response)
        request_lines = () if is_request_written else stored("request", request, mode)
        lines = (*request_lines, *stored("response", partial.without_parts(response), mode))
        return _Parts(lines, facts, content, not exchange.lost_bytes)

    def _exchange_content(
        self, session_id: str, body: Body, response: dict[str, Any]
    ) -> ExchangeContent | None:
        """Return the content of an exchange; None if its request is no longer in memory, because too many other
        requests have started since then.
        """
        try:
            return ExchangeContent(
                self._bodies[session_id].written(body.content_id), text_bytes(response)
            )
        except KeyError:
            return None

    def _end(self, record: SessionEnd | SessionReturn, mode: str) -> _Parts:
        """Return the parts of the end of a session, with its redacted name and arguments if these contained a
        credential.
        """
        session_id = session_of(record)
        secrets, written = self._credentials.of(session_id), self._credentials.start_of(session_id)
        started = (
            start_without_credentials(written, self.redactor, secrets)
            if written is not None
            else None
        )
        self._credentials.forget(session_id)
        jobs_lines = ended_jobs(session_id, mode)
        if isinstance(record, SessionEnd):
            if started is None and not self._has_secret(record, secrets):
                return _Parts(jobs_lines, self._end_facts(record))
            record = SessionReturn(record)
        line = end_content(record, self.redactor, secrets, started)
        return _Parts(
            (*jobs_lines, *stored("end", line, mode)),
            self._end_facts(self._session_end(record, line, mode, secrets)),
        )

    def _has_secret(self, end: SessionEnd, secrets: Sequence[bytes]) -> bool:
        """Return whether the end of a session without content contains a credential."""
        if not secrets:
            return False
        text = "\n".join(each for each in (end.reason, end.signature) if each is not None)
        return self.redactor.redact_text(text, secrets) != text

    def _session_end(
        self, record: SessionReturn, line: Mapping[str, Any], mode: str, secrets: Sequence[bytes]
    ) -> SessionEnd:
        """Return the fact of the end of a session, with digests instead of content."""
        reason, signature, type_name = (
            each if each is None else self.redactor.redact_text(each, secrets)
            for each in (
                record.end.reason,
                record.end.signature,
                record.result.type if record.result is not None else None,
            )
        )
        if signature is not None and signature.startswith(DECLARED):
            declared = record.end.reason
            is_clean = type(declared) is Label and declared == reason
            digest = self.digest(signature.removeprefix(DECLARED))
            shown: Label | None = prefixed(DECLARED, declared if is_clean and declared else digest)
        else:
            shown = _as_before(signature, record.end.signature)
        return dataclasses.replace(
            record.end,
            reason=_as_before(reason, record.end.reason),
            signature=shown,
            end_content=content_id(line, mode),
            result_digest=result_digest(record, self.redactor, secrets),
            result_type=type_label(type_name) if type_name is not None else None,
        )

    def _end_facts(self, end: SessionEnd) -> Iterator[Fact]:
        """Yield the ends of open requests and interactions, and the end of the session.

        The end of the session gets the number of its lost records, and the outcome of its last interaction.
        """
        session_id = end.session_id
        yield from self._view(session_id).end_session(end.ended_ns)
        self._views.pop(session_id, None)
        self._declared.pop(session_id, None)
        self._bodies.pop(session_id, None)
        for each in list(self._partial.values()):
            if each.request_line["session_id"] == session_id:
                del self._partial[each.attempt_id]
        end = settled(end, self._results.pop(session_id, None))
        yield dataclasses.replace(end, dropped=self._lost.pop(session_id, 0))

    def _follow_interactions(self, record: Fact) -> None:
        """Remember the result of the last interaction of a session, except those of background agents."""
        if isinstance(record, InteractionStart) and has_parent_lane(record.lane):
            self._background.add(record.interaction_id)
        elif isinstance(record, InteractionEnd) and record.interaction_id in self._background:
            self._background.discard(record.interaction_id)
        elif isinstance(record, InteractionEnd):
            self._results[record.session_id] = record

    def _view(self, session_id: str) -> SessionView:
        if session_id not in self._views:
            self._views[session_id] = SessionView(
                session_id, unchecked, world.new_id, Prefixes(self._key)
            )
        return self._views[session_id]

    def _checked(self, fact: Fact, texts: dict[str, str]) -> Fact:
        """Return a fact whose strings are safe to share: none is content, and none looks like a secret.

        Args:
            fact: the fact.
            texts: is extended by the texts that digests replace, by digest.
        """
        kind, clean = type(fact), self._clean
        found = _VALUES[kind](fact)
        values: list[Any] | None = None
        for at, name, is_own_id_field in _TEXTS[kind]:
            value = found[at]
            if value is None or (type(value) is Label and value in clean):
                continue
            if isinstance(value, Label):
                checked: Any = self._without_secret(value)
            elif not isinstance(value, str):
                if type(value) is dict and _is_clean(value, clean):
                    continue
                checked = self._checked_mapping(fact, name, value, texts)
            elif is_own_id_field and is_own_id(value):
                continue
            else:
                is_kept_label = name == "label" and getattr(fact, "kind", "") == "compaction_kept"
                field = "label.compaction_kept" if is_kept_label else name
                checked = self._readable_text(fact, field, value, texts)
            if checked is not value:
                values = [*found] if values is None else values
                values[at] = checked
        return fact if values is None else _MAKERS[kind](*values)

    def _checked_mapping(
        self, fact: Fact, name: str, values: Mapping[Any, Any], texts: dict[str, str]
    ) -> dict[Any, Any]:
        """Return a mapping of a fact with readable names and values.

        The values have the rule of their name, a rule for all values, or the rule of the names.
        """
        rules, checked = RULES[type(fact)], {}
        default = f"{name}.value" if f"{name}.value" in rules else name
        for key, value in values.items():
            field = f"{name}.{key}"
            known = self._word(fact, name, key, texts)
            word = self._word(fact, field if field in rules else default, value, texts)
            if known != key and isinstance(word, str) and word != value:
                texts[word] = value
            checked[known] = word
        return checked

    def _word(self, fact: Fact, field: str, value: Any, texts: dict[str, str]) -> Any:
        if isinstance(value, Label):
            return self._without_secret(value)
        return self._readable_text(fact, field, value, texts) if isinstance(value, str) else value

    def _readable_text(self, fact: Fact, field: str, text: str, texts: dict[str, str]) -> Label:
        """Return a text of a fact if it is safe to share, else its digest.

        Most texts recur, so the label of an accepted text is cached. IDs do not recur and are generated, so they
        are neither cached nor searched for secrets. A name that only one session declares is checked each time, because
        another session may not declare it.
        """
        key = type(fact), field, text
        known = self._readable.get(key)
        if known is not None:
            return known
        if not is_label(text) and not is_claude_model(text):
            return self._digest_in(fact, field, text, texts)
        if (type(fact), field) in ID_FIELDS:
            is_known = may_stay(*key, _NOTHING)
            return Label(text) if is_known else self._digest_in(fact, field, text, texts)
        if may_stay(*key, self._terms):
            known = self._without_secret(Label.accepted(text))
            _remember(self._readable, key, known, KNOWN_LABELS)
            return known
        if may_stay(*key, self._declared_in(fact.session_id)):
            return self._without_secret(Label.accepted(text))
        return self._digest_in(fact, field, text, texts)

    def _digest_in(self, fact: Fact, field: str, text: str, texts: dict[str, str]) -> Label:
        """Return the digest of a text, or the text with digests in place of the parts that a person or a model
        chose.
        """
        if field in LANE_FIELDS and "/" in text:
            return self._with_digests(text, self._lane_segment, texts)
        if field == "note":
            return self._with_digests(text, self._noted_count, texts)
        digest = self.digest(text)
        if (type(fact), field) not in _WITH_LINES:
            texts[str(digest)] = text
        return digest

    def _with_digests(
        self, text: str, as_readable: Callable[[str], tuple[str, str]], texts: dict[str, str]
    ) -> Label:
        """Return a text of several parts, with digests in place of the parts that a person or a model chose.

        Args:
            text: the parts, joined by `/`.
            as_readable: splits a part into the text that a digest must replace (empty if there is none), and the rest.
            texts: the replaced texts are added to it, by digest.
        """
        parts = []
        for part in text.split("/"):
            chosen, rest = as_readable(part)
            if chosen:
                digest = str(self.digest(chosen))
                texts[digest] = chosen
                chosen = digest
            parts.append(chosen + rest)
        readable = "/".join(parts)
        if is_label(readable):
            return Label(readable)
        digest_of_all = self.digest(text)
        texts[str(digest_of_all)] = text
        return digest_of_all

    def _lane_segment(self, segment: str) -> tuple[str, str]:
        own = joined()
        declared = own.place.lane.split("/") if own else ()
        return ("", segment) if is_lane_segment(segment) or segment in declared else (segment, "")

    def _noted_count(self, part: str) -> tuple[str, str]:
        name, colon, reason = part.partition(":")
        if not is_noted_reason(reason):
            return part, ""
        return ("", part) if is_noted_count(name, self._terms) else (name, colon + reason)


def _as_before(redacted: str | None, text: Label | None) -> Label | None:
    """Return a redacted text; the label itself if redaction did not change it."""
    if redacted is None or (type(text) is Label and redacted == text):
        return text
    return unchecked(redacted)


def _lost_exchanges(event: Event) -> int:
    """Return how many exchanges the sink dropped, according to an event of the kind `drop`."""
    return int(event.numbers.get(Label("exchanges"), 0)) if event.kind == "drop" else 0


def _is_clean(values: dict[Any, Any], clean: Mapping[Label, None]) -> bool:
    """Return whether all names and texts of a mapping are labels that have been checked."""
    for name, value in values.items():
        if type(name) is not Label or name not in clean:
            return False
        if isinstance(value, str) and (type(value) is not Label or value not in clean):
            return False
    return True


def _tool_exchange_content(line: Mapping[str, Any]) -> ExchangeContent:
    call = json.loads(text_bytes(dict(line)))
    texts = (json.dumps(call[part], ensure_ascii=False) for part in ("input", "result"))
    return ExchangeContent(*(text.encode("utf-8", "surrogatepass") for text in texts))


def _remember(known: dict[Any, Any], key: object, value: Any, limit: int = KNOWN_SESSIONS) -> None:
    """Set a key; if there are more than `limit` keys, forget the oldest one."""
    known.pop(key, None)
    known[key] = value
    if len(known) > limit:
        del known[next(iter(known))]


def _has_text(hint: Any) -> bool:
    if isinstance(hint, type):
        return issubclass(hint, str)
    arguments = [each for each in get_args(hint) if not isinstance(each, str)]
    return any(_has_text(each) for each in arguments)


_HINTS = {kind: get_type_hints(kind) for kind in TABLES}
_FIELDS = {kind: tuple(each.name for each in dataclasses.fields(kind)) for kind in TABLES}
_VALUES: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*names) for kind, names in _FIELDS.items()
}
"""Return the values of all fields of each kind of fact, in order."""
_MAKERS: Mapping[type, Callable[..., Any]] = {kind: maker(kind) for kind in TABLES}
_TEXTS = {
    kind: tuple(
        (at, name, Label not in (_HINTS[kind][name], *get_args(_HINTS[kind][name])))
        for at, name in enumerate(names)
        if _has_text(_HINTS[kind][name])
    )
    for kind, names in _FIELDS.items()
}
"""The fields of each kind of fact that can contain text, directly or in a mapping: position, name, and whether the
field contains an ID of agentobs. Fields with closed enums cannot contain text.
"""
_WITH_LINES = frozenset(
    ((SessionStart, "name"), (SessionStart, "tags.value"), (SessionEnd, "reason"))
)
"""The fields whose texts are in the content of the start or the end of a session."""
_NOTHING: Set[str] = frozenset()

__all__ = ["Interpretation", "Interpreter", "session_of"]

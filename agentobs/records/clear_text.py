"""Clear text: which strings of a fact may stay readable, by field.

Facts can be shared, so a text that a person or a model wrote must not be in them, not even if it is one word, a path or
an e-mail address. A string stays readable if it is

1. a `Label`: a constant of agentobs, a text that the program declared as free of content, or a name that the program
   declares (of a session, a tag, a class, a span, a hook, an agent), see `declared_label`;
2. a value of a closed set: the terms of the providers, or a set of agentobs;
3. the name of a tool or a model that a request of the session declares, or the name of a Claude model;
4. an ID in a generated form of agentobs or of a provider.

Every other string is replaced by its keyed digest. docs/redaction.md lists the names of the first and third group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, get_args

from agentobs.records.effect_facts import Command, EffectLink, McpCall
from agentobs.records.event_catalog import ROW_KINDS, is_built_in
from agentobs.records.exchanges import (
    ANSWERED_INSIDE,
    AskKind,
    QuerySource,
    ToolOutcome,
    child_lane,
    short_digest,
)
from agentobs.records.facts import (
    RESULT,
    Attempt,
    Event,
    Export,
    FileChange,
    Gap,
    GitState,
    InteractionEnd,
    InteractionResult,
    InteractionStart,
    Permission,
    Prefix,
    ProviderToolResult,
    ProviderToolUse,
    Pruning,
    Score,
    SessionEnd,
    SessionStart,
    SessionTitle,
    SpanEnd,
    SpanStart,
    ToolResult,
    ToolUse,
    UsageRow,
    WorkspaceState,
    WorldAnswer,
    Zones,
)
from agentobs.records.labels import Label, constant_label, is_label, unchecked
from agentobs.records.span_names import RESERVED_SPAN_NAMES
from agentobs.records.usage import Certainty

Rule = Callable[[str, Set[str]], bool]
"""Returns whether a text may stay readable, given the terms of the providers, and the tools and models
that the requests of the session declare."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}\Z")
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(?::[A-Za-z_][A-Za-z0-9_.]*)?\Z")
_ENTRY = re.compile(r"@?[A-Za-z0-9_.-][A-Za-z0-9_./-]{0,95}(?::[A-Za-z0-9_.-]{1,64})?\Z")
_PLACE = re.compile(r"exception:[A-Za-z_][A-Za-z0-9_.]*(?:@[A-Za-z0-9_.]+:[A-Za-z0-9_.]+)?\Z")
_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_OWN_ID = re.compile(
    rf"(?:[a-z0-9]{{2,8}}:)?[0-9a-f]{{16,64}}\Z|{_UUID}\Z"
    r"|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z|[a-z]\d{0,6}(?:_\d+)?\Z"
)
"""Hexadecimal IDs, digests, UUIDs, a `traceparent`, and a letter with a number."""
_PROVIDER_ID = re.compile(
    r"(?:msg|req|toolu|srvtoolu|mcptoolu|msgbatch|file|container|compl)_(?:(?:bdrk|vrtx)_)?01[A-Za-z0-9]{20,28}\Z"
    r"|(?:sesn|sevt|sthr|outc)_01[A-Za-z0-9]{22}\Z"
    r"|tooluse_[A-Za-z0-9_-]{22}\Z"
    r"|call_[A-Za-z0-9]{24}\Z|chatcmpl-[A-Za-z0-9]{29}\Z|gen-\d{10}-[A-Za-z0-9]{20}\Z"
    r"|(?:resp|fc|rs|msg)_[0-9a-f]{48,68}\Z"
    rf"|(?:(?:msg|toolu|call|req|resp|gen|chatcmpl)[_-])?(?:[0-9a-f]{{24}}|[0-9a-f]{{32}}|{_UUID})\Z"
    r"|(?:msg|req|toolu|srvtoolu|mcptoolu|tooluse|msgbatch|call)_(?:[A-Za-z]|[A-Za-z]?\d{1,6})(?:[_.]\d{1,4}){0,3}[A-Z]?\Z"
    r"|(?:sesn|sevt|sthr|outc)_\d{1,6}\Z"
    r"|(?:msg|req|toolu|srvtoolu|mcptoolu|msgbatch|file|container)_REDACTED(?:_\d{1,6})?\Z"
    r"|[a-z]\d{1,4}(?:_\d{1,4})?\Z"
)
"""IDs of Anthropic (with the infix of a platform), of Bedrock's Converse, of gateways, and numbers of test servers,
which are too short for a name, and of traffic whose IDs were removed.

Source: the IDs in recorded traffic; platform.claude.com/docs/en/api, 2026-11; OpenAI's and OpenRouter's references.
"""
_CLAUDE = re.compile(
    r"(?:(?:[a-z]{2,6}\.)?anthropic[./]|~anthropic/|(?:publishers/)?anthropic/(?:models/)?)?claude"
    r"(?:[-.@](?:opus|sonnet|haiku|instant|fable|mythos|preview|fast|latest|default|v?\d{1,8}(?:[.:]\d{1,2})?))+"
    r"(?::\d{1,3}k)?(?:\[1m\])?\Z"
)
"""The names of Claude models on all platforms. Source: anthropic 2.12, `types/model.py`; `ledger.model_names`."""
_MODEL = re.compile(
    r"(?:[A-Za-z0-9_~.-]{1,64}/){0,4}[A-Za-z0-9_.:+-]{1,128}(?:@(?:\d{8}|default|latest))?(?:\[\w{1,8}\])?\Z"
    r"|arn:aws[a-z-]*:bedrock:[A-Za-z0-9:/._-]{1,200}\Z"
)
"""Names of models that a request declares: a relative name with an optional release, or an ARN of Bedrock."""
_RELEASE = re.compile(r"(?:[-@:](?:v?\d[\d.-]{0,11}|latest|default|preview))+\Z")
"""The suffix that a server adds to the name of a requested model."""
_VERSION = re.compile(
    r"\d{1,5}(?:\.\d{1,5}){0,3}(?:[-.+]?(?:a|b|rc|alpha|beta|dev|post|local)[-.]?\d{0,8})?\+?\Z"
)
_PLATFORM = re.compile(
    r"(?:linux|darwin|win32|cygwin|aix|emscripten|wasi|ios|android|sunos5|(?:free|net|open)bsd\d{0,2})\Z"
)
"""The values of `sys.platform`."""


def is_id(text: str) -> bool:
    """Return whether a text is an ID in a generated form of agentobs or of a provider."""
    return _OWN_ID.match(text) is not None or _PROVIDER_ID.match(text) is not None


def is_provider_id(text: str) -> bool:
    """Return whether a text is an ID in a form of a provider or of a client, such as a UUID."""
    return _PROVIDER_ID.match(text) is not None


def is_own_id(text: str) -> bool:
    """Return whether a text is an ID in a form of agentobs."""
    return _OWN_ID.match(text) is not None


def is_declared_name(text: str) -> bool:
    """Return whether a text has the form of a name in a program. Paths and e-mail addresses do not."""
    return _NAME.match(text) is not None


def is_declared_model(text: str) -> bool:
    """Return whether a text has the form of the name of a model. Absolute paths and e-mail addresses do not."""
    return _MODEL.match(text) is not None


def is_claude_model(text: str) -> bool:
    """Return whether a text is the name of a Claude model on any platform, such as `claude-opus-5[1m]`."""
    return _CLAUDE.match(text) is not None


def declared_label(name: str) -> Label:
    """Return a name that the program declares as a label; the recorder replaces a name that has another form.

    Never pass a text that a person or a model wrote, such as the name of a tool that a model calls.
    """
    return _label_like(_NAME, name)


def class_label(name: str) -> Label:
    """Return the name of a class, which the program declares; the recorder replaces a name that has another form."""
    return _label_like(_CLASS, name)


def error_label(error: BaseException) -> Label:
    """Return the class of an exception as a label if it has the form of the name of a class."""
    return class_label(type(error).__name__)


def declared_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags with their names as labels; a value is a label only if the program passes a label."""
    return {
        declared_label(str(name)): value if isinstance(value, Label) else str(value)
        for name, value in tags.items()
    }


def id_label(text: str) -> Label:
    """Return an ID of a client or a provider as a label if it has a known form."""
    return constant_label(text) if is_provider_id(text) else unchecked(text)


def type_label(name: str) -> Label:
    """Return a class with its module, such as `builtins:dict`, as a label if it has this form."""
    return _label_like(_TYPE, name)


def entry_label(name: str) -> Label:
    """Return the entry point of a session as a label if it is a module and a function, or a relative path."""
    return _label_like(_ENTRY, name)


def exception_label(origin: str) -> Label:
    """Return the failure signature of an exception as a label if its origin has the form `CLASS@MODULE:FUNCTION`.

    All parts are names in the source of the program.
    """
    return _label_like(_PLACE, f"exception:{origin}")


def _label_like(pattern: re.Pattern[str], name: str) -> Label:
    fits = pattern.match(name) is not None and is_label(name)
    return constant_label(name) if fits else unchecked(name)


def _never(_text: str, _: Set[str]) -> bool:
    return False


def _one_of(*words: Any) -> Rule:
    """Return a rule that accepts the words of closed sets."""
    known = frozenset(words)
    return lambda text, _: text in known


def _like(pattern: re.Pattern[str]) -> Rule:
    return lambda text, _: pattern.match(text) is not None


def _own_id(text: str, _: Set[str]) -> bool:
    return _OWN_ID.match(text) is not None


def _provider_id(text: str, _: Set[str]) -> bool:
    return _PROVIDER_ID.match(text) is not None


def _term(text: str, declared: Set[str]) -> bool:
    """Return whether a text is a term of the providers, such as a stop reason or the name of a count."""
    return text in declared


def _tool(text: str, declared: Set[str]) -> bool:
    """Return whether a request declares a tool with this name, or a provider or its client defines it."""
    return text in declared


def _model(text: str, declared: Set[str]) -> bool:
    """Return whether a text is the name of a Claude model, or a name that a request declares, with any release."""
    if text in declared or _CLAUDE.match(text) is not None:
        return True
    release = _RELEASE.search(text)
    return release is not None and text[: release.start()] in declared


def _key(text: str, _: Set[str]) -> bool:
    return is_id(text) or (len(text) <= 6 and text.isascii() and text.isdigit())


_MESSAGE = re.compile(r"message:\d{1,6}\Z")


def _kept(text: str, _: Set[str]) -> bool:
    return _PROVIDER_ID.match(text) is not None or _MESSAGE.match(text) is not None


def _event_label(text: str, declared: Set[str]) -> bool:
    return text in declared or is_id(text) or _model(text, declared)


def _signature(text: str, _: Set[str]) -> bool:
    return text.startswith(RESULT) and text[len(RESULT) :] in get_args(InteractionResult)


def is_lane_segment(segment: str) -> bool:
    """Return whether a part of a lane was generated: `main`, an ID, a digest, `kind:digest` or `compaction:number`."""
    return (
        segment == "main"
        or _PROVIDER_ID.match(segment) is not None
        or _PROVIDER_ID.match(segment.rpartition(".")[0]) is not None
        or _SEGMENT.match(segment) is not None
    )


def lane_of_call(parent: str, tool_use_id: str) -> str:
    """Return the name of the lane of an agent that a tool call starts.

    It is the same in the agent, in its recording and in a replay. Therefore an ID of an unknown form is replaced here,
    and not by the recorder, whose digests depend on a key.
    """
    is_known = is_lane_segment(tool_use_id)
    return child_lane(parent, tool_use_id if is_known else short_digest(tool_use_id))


_SEGMENT = re.compile(
    rf"\.[0-9a-f]{{16}}\Z|(?:{'|'.join(sorted(ANSWERED_INSIDE))}):\.?[0-9a-f]{{16}}\Z"
    r"|compaction:\d{1,6}\Z"
    r"|(?:agent-)?(?:acompact-)?(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{6,40}(?:\.\d{1,4})?\Z"
    r"|(?:agent-)?(?:[a-z]|[a-z]?\d{1,4})(?:\.\d{1,4})?\Z"
)


def _lane(text: str, _: Set[str]) -> bool:
    return all(is_lane_segment(segment) for segment in text.split("/"))


_file_mode = _one_of("100644", "100755", "120000")
"""The modes of files and links in a git tree. Source: gitformat-index(5)."""

_REASONS = frozenset(
    (
        "null", "missing", "bool", "no_integer", "negative", "huge", "no_text", "no_object", "unpriced", "unknown",
        "redeemed", "unreadable", "less_than_total", "more_than_total", "bedrock", "vertex", "unreported",
    )
)  # fmt: skip
_NOTED = frozenset(("usage", "counts", "unnamed", "platform", "fallback_credit"))


def is_noted_reason(text: str) -> bool:
    """Return whether a text is a reason in the note of a usage row."""
    return text in _REASONS


def is_noted_count(name: str, declared: Set[str]) -> bool:
    """Return whether a text is the name of a count, or of a part of a usage row, that a note may contain."""
    return name in declared or name in _NOTED


def _note(text: str, declared: Set[str]) -> bool:
    """Return whether a text is the note of a usage row: the name of a count and a reason, several joined by `/`."""
    parts = (part.partition(":") for part in text.split("/"))
    return all(is_noted_count(name, declared) and reason in _REASONS for name, _, reason in parts)


LANE_FIELDS = frozenset(("lane", "reported_lane"))
"""The fields with the name of a lane; a digest replaces only the parts of a name that a person or a model chose."""

_SOURCE = _one_of(*get_args(QuerySource))
_PLACES: dict[str, Rule] = {"lane": _lane, "query_source": _SOURCE}
_NUMBERS = _one_of(*(name for kind in ROW_KINDS.values() for name in kind.numbers))
_LABEL_NAMES = frozenset(name for kind in ROW_KINDS.values() for name in kind.labels)

_MANAGED_IDS = tuple(
    f"labels.managed_{name}_id"
    for name in ("session", "event", "thread", "outcome", "workflow_run")
)
_MANAGED_TERMS = tuple(f"labels.managed_{name}" for name in ("word", "retry_status", "permission"))
"""The labels of events of managed agents, which the provider chose."""

RULES: dict[type, dict[str, Rule]] = {
    SessionStart: {
        "name": _never,
        "entry": _never,
        "agentobs_version": _like(_VERSION),
        "sdk_version": _like(_VERSION),
        "python_version": _like(_VERSION),
        "platform": _like(_PLATFORM),
        "continues_session_id": _own_id,
        "content": _one_of("vault", "off", "export"),
        "source": _never,
        "tags": _never,
        "tags.value": _never,
        "live_exports": _never,
    },
    SessionEnd: {
        "reason": _never,
        "signature": _signature,
        "result_type": _never,
        "error_class": _never,
        "error_file": _never,
    },
    Gap: {"kind": _never, "reason": _never},
    InteractionStart: _PLACES,
    InteractionEnd: {
        **_PLACES,
        "result": _one_of(
            *get_args(InteractionResult), "budget_reached", "retries_exhausted", "terminated"
        ),
    },
    Attempt: {
        **_PLACES,
        "reported_lane": _lane,
        "method": _one_of("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"),
        "endpoint": _never,
        "model_requested": _model,
        "model": _model,
        "error_type": _term,
        "stop_reason": _term,
        "message_id": _provider_id,
        "request_id": _provider_id,
        "origin": _one_of("live", "replayed"),
        "parameters": _term,
        "limit_hit": _never,
        "rate_limits": _never,
    },
    UsageRow: {
        "kind": _term,
        "model": _model,
        "service_tier": _term,
        "inference_geo": _term,
        "speed": _term,
        "server_requests": _term,
        "other_counts": _term,
        "note": _note,
        "certainty": _one_of(*get_args(Certainty)),
        "batch_result_id": _never,
    },
    Prefix: {"miss_reason": _term},
    Zones: {},
    ToolUse: {**_PLACES, "tool_use_id": _provider_id, "name": _tool},
    ToolResult: {
        **_PLACES,
        "tool_use_id": _provider_id,
        "tool": _tool,
        "outcome": _one_of(*get_args(ToolOutcome)),
        "error_kind": _never,
        "error_class": _never,
        "error_file": _never,
    },
    ProviderToolUse: {
        **_PLACES,
        "tool_use_id": _provider_id,
        "caller_id": _provider_id,
        "name": _tool,
        "server": _tool,
        "batch_result_id": _never,
    },
    ProviderToolResult: {
        **_PLACES,
        "tool_use_id": _provider_id,
        "type": _term,
        "outcome": _one_of(*get_args(ToolOutcome)),
        "error_code": _term,
        "stop_reason": _term,
        "batch_result_id": _never,
    },
    Event: {
        **_PLACES,
        "kind": lambda text, _: is_built_in(text),
        "label": _event_label,
        "label.compaction_kept": _kept,
        "labels.tool_use_id": _provider_id,
        "labels.attempt_id": _own_id,
        **dict.fromkeys(_MANAGED_IDS, _provider_id),
        **dict.fromkeys(_MANAGED_TERMS, _term),
        "labels": lambda text, declared: text in _LABEL_NAMES or _tool(text, declared),
        "numbers": _NUMBERS,
    },
    SpanStart: {
        **_PLACES,
        "name": _one_of(*RESERVED_SPAN_NAMES),
        "label": _event_label,
        "labels": _never,
        "numbers": _never,
    },
    SpanEnd: {"error_type": _term},
    Permission: {
        **_PLACES,
        "tool_use_id": _provider_id,
        "tool": _tool,
        "reason_type": _never,
        "resolver": _never,
        "source": _never,
        "rule": _never,
    },
    WorldAnswer: {**_PLACES, "kind": _one_of(*get_args(AskKind)), "key": _key},
    SessionTitle: {"title": _never},
    GitState: {
        "lane": _lane,
        "repository": _never,
        "branch": _never,
        "commit": _own_id,
        "directory": _never,
    },
    Score: {
        "lane": _lane,
        "name": _never,
        "label": _never,
        "comment": _never,
        "tool_use_id": _provider_id,
    },
    WorkspaceState: {
        "lane": _lane,
        "tree": _never,
        "failure": _one_of(
            "disk_full", "too_large", "no_git", "locked", "timeout", "git_failed", "unreadable"
        ),
        "repository": _never,
        "branch": _never,
        "commit": _own_id,
    },
    FileChange: {
        "lane": _lane,
        "path": _never,
        "previous_path": _never,
        "previous_blob": _never,
        "blob": _never,
        "previous_mode": _file_mode,
        "mode": _file_mode,
        "tool_use_id": _provider_id,
    },
    Command: {"lane": _lane, "program": _never, "signal": _never},
    McpCall: {"lane": _lane, "server": _never, "method": _never, "tool": _tool},
    EffectLink: {"lane": _lane, "tool_use_id": _provider_id},
    Pruning: {},
    Export: {"destination": _never, "profile": _never},
}
"""The rule of each field that may contain another readable text than an ID of agentobs.

A field that only accepts labels has the rule `_never`.
"""


ID_FIELDS = frozenset(
    (kind, field)
    for kind, rules in RULES.items()
    for field, rule in rules.items()
    if rule in (_own_id, _provider_id)
)
"""The fields that contain only IDs, as pairs of class and field."""


def may_stay(kind: type, field: str, text: str, declared: Set[str]) -> bool:
    """Return whether a field of a fact may contain a text.

    Args:
        kind: the class of the fact.
        field: the name of the field.
        text: the text, which is not a `Label`.
        declared: the terms of the providers, and the tools and models that the requests of the session declare.
    """
    rule: Any = RULES[kind].get(field, _own_id)
    return bool(rule(text, declared))

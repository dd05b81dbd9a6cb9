"""Options: how this process records, as one frozen value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from agentobs import world
from agentobs.errors import UsageError, say_once
from agentobs.recording.journal.file_system import OS, Files
from agentobs.records.backend import Backend
from agentobs.records.canonical_json import digest
from agentobs.records.event_catalog import wrong_rate
from agentobs.redaction import Rule

Content = Literal["off", "vault", "export"]
"""Where what was said may go: `off`, nowhere, it is never written; `vault`, into the content files of the segments and
no further; `export`, there and on to the backends."""

Sync = Literal["process", "interval", "always"]
"""What is waited for: `process`, nothing, what was written survives the process; `interval`, it survives a power loss
within 200 ms; `always`, each exchange is made to before the agent goes on, for at most 50 ms."""

CONTENT_VARIABLE = "AGENTOBS_CONTENT"
"""The environment variable that is the default of a session that starts."""


@dataclass(frozen=True, slots=True)
class Options:
    """How this process records; the first that is given to `agentobs.start` holds."""

    content: Content | None = None
    """The default of its sessions; None: what `AGENTOBS_CONTENT` says, else `vault`."""
    sync: Sync = "interval"
    """What a record is made to survive, and when."""
    backends: tuple[Backend, ...] = ()
    """Where facts go beside the journal: OTLP, a trace file, a function of one's own."""
    files: Files = field(default=OS, repr=False)
    """How segments are written: the operating system's own calls."""
    seal_key: str | os.PathLike[str] | None = field(default=None, repr=False)
    """The file with the key that content is sealed with; None: what `AGENTOBS_CONTENT_KEY` or
    `AGENTOBS_CONTENT_KEY_FILE` says, else content is not sealed. See docs/redaction.md."""
    redactors: tuple[Rule, ...] = ()
    """Rules of your own: functions that say where in a text a secret of yours stands; see docs/redaction.md."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The share of the events of a kind that are kept, from 0 to 1, by kind; all of the others are. Only rows of
    `events` are sampled: never exchanges, usage, or what was dropped. See docs/events.md."""
    span_sweep_seconds: float = 60.0
    """How often it is looked for spans that nobody ends, in seconds."""
    span_orphan_seconds: float = 1800.0
    """How long nothing may happen in a span, in seconds, before it is ended as orphaned; the loop's waits for people,
    tools with a time limit and retries may be silent for as long as they may take, and this beyond."""
    propagate: bool = False
    """Whether requests to the provider tell it the trace in which they are made, as a `traceparent` header."""

    def __post_init__(self) -> None:
        """Check how spans are swept.

        Raises:
            UsageError: a time is not a finite number of seconds above 0.
        """
        for name in ("span_sweep_seconds", "span_orphan_seconds"):
            seconds = getattr(self, name)
            if not 0 < seconds < float("inf"):
                raise UsageError(
                    f"{name} is {seconds!r}",
                    where="Options",
                    todo="Give a number of seconds above 0",
                )

    def digest(self) -> str:
        """Return a digest of what was chosen: equal options have equal digests."""
        kinds = [f"{type(each).__module__}.{type(each).__qualname__}" for each in self.backends]
        spans = [self.span_sweep_seconds, self.span_orphan_seconds, self.propagate]
        chosen = [self.content, self.sync, kinds, sorted(self.sampling.items()), spans]
        return digest(json.dumps(chosen).encode())

    def live_exports(self) -> dict[str, str] | None:
        """Return the profile of each backend by its destination, of those that say where they send to."""
        told = ((getattr(b, "destination", None), getattr(b, "profile", "")) for b in self.backends)
        found = {str(destination): str(profile) for destination, profile in told if destination}
        return found or None


def check_sampling(options: Options) -> None:
    """Check what is to be sampled.

    Raises:
        UsageError: there is no such kind of event, it cannot be sampled, or the share is not from 0 to 1.
    """
    wrong = [wrong_rate(kind, rate) for kind, rate in options.sampling.items()]
    if found := "; ".join(each for each in wrong if each is not None):
        raise UsageError(
            found,
            where="sampling",
            todo="Name kinds of docs/events.md that are rows of events, or own ones with a dot, each with a number "
            "from 0 to 1",
        )


def content_of(given: Content | None, options: Options) -> Content:
    """Return where the content of a session that starts now may go.

    Raises:
        UsageError: it is none of `off`, `vault` and `export`.
    """
    told = given or options.content or world.environ(CONTENT_VARIABLE) or "vault"
    if told not in get_args(Content):
        raise UsageError(
            f"content cannot be {told[:80]!r}",
            where=CONTENT_VARIABLE if not (given or options.content) else "content",
            todo="Say off, vault or export",
        )
    return told  # type: ignore[return-value]  # one of its values


def content_or_off(given: Content | None, options: Options) -> Content:
    """Return where a session's content may go; nowhere, with a warning, if the choice is invalid."""
    try:
        return content_of(given, options)
    except UsageError as error:
        say_once(f"the content of sessions is not recorded: {error}", about="content")
        return "off"

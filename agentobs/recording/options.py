"""The recording options of a process, as one frozen value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from agentobs import world
from agentobs.errors import UsageError, warn_once
from agentobs.recording.journal.file_system import OS, Files
from agentobs.records.backend import Backend, kinds_of
from agentobs.records.canonical_json import digest
from agentobs.records.clear_text import declared_label
from agentobs.records.event_sampling import sampling_error
from agentobs.records.labels import Label
from agentobs.redaction import Rule

Content = Literal["off", "vault", "export"]
"""Where content is written. `off`: nowhere. `vault`: only to the content files of the segments. `export`: to the
content files and to the backends.
"""

Sync = Literal["process", "interval", "always"]
"""How durable a record is. `process`: it survives the end of the process. `interval`: it also survives a power loss,
after 200 ms at most. `always`: each exchange is synced before the agent continues; the agent waits 50 ms at most.
"""

GitMode = Literal["off", "on", "names"]
"""Whether sessions record the git repository of their working directory. `off`: no. `on`: yes, with keyed digests of
the names in the facts, and the names as content. `names`: yes, with readable names in the facts.
"""

GIT_VARIABLE = "AGENTOBS_GIT"
"""The environment variable with the default of `Options.git`."""

CONTENT_VARIABLE = "AGENTOBS_CONTENT"
"""The environment variable with the default content mode of a new session."""


@dataclass(frozen=True, slots=True)
class Options:
    """How this process records; see `agentobs.start`. Only the first options of a process have an effect."""

    content: Content | None = None
    """The default content mode of sessions. None: the value of `AGENTOBS_CONTENT`, or `vault`."""
    sync: Sync = "interval"
    """How durable a record is, and when."""
    backends: tuple[Backend, ...] = ()
    """Receivers of facts in addition to the journal: OTLP exporters, trace files, functions. Each one states which
    kinds of facts it receives; see `agentobs.receiving`.
    """
    files: Files = field(default=OS, repr=False)
    """The functions that write segments; by default, the calls to the operating system."""
    seal_key: str | os.PathLike[str] | None = field(default=None, repr=False)
    """The file with the key that encrypts content. None: the value of `AGENTOBS_CONTENT_KEY` or
    `AGENTOBS_CONTENT_KEY_FILE`; if neither is set, content is not encrypted. See docs/redaction.md.
    """
    redactors: tuple[Rule, ...] = ()
    """Custom redaction rules: functions that find secrets in a text; see docs/redaction.md."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """The share of events to keep, from 0 to 1, by kind; other kinds are kept completely. Only rows of `events` are
    sampled, never exchanges, usage, or records of lost data. See docs/events.md.
    """
    span_sweep_seconds: float = 60.0
    """How often the recorder looks for spans that were not ended, in seconds."""
    span_orphan_seconds: float = 1800.0
    """How long a span may have no activity, in seconds, before it is closed as orphaned. In the agent loop, spans of
    approval waits, of tools with a time limit and of retry waits may additionally take as long as their own limit.
    """
    git: GitMode | None = None
    """Whether sessions record branch, commit and uncommitted changes of their git repository, and whether the names of
    repository and branch are readable in the facts. None: the value of `AGENTOBS_GIT`, or `on`. See docs/finding.md.
    """
    propagate: bool = False
    """Whether requests to the provider contain the current trace context, as a `traceparent` header."""

    def __post_init__(self) -> None:
        """Check the intervals of the span sweeper, and the kinds of the backends.

        Raises:
            UsageError: an interval is not a finite number of seconds above 0, `git` is unknown, or a backend does not
                state which kinds of facts it receives.
        """
        for each in self.backends:
            kinds_of(each)
        for name in ("span_sweep_seconds", "span_orphan_seconds"):
            seconds = getattr(self, name)
            if not 0 < seconds < float("inf"):
                raise UsageError(
                    f"{name} is {seconds!r}",
                    where="Options",
                    todo="Pass a number of seconds above 0",
                )
        if self.git is not None and self.git not in get_args(GitMode):
            raise UsageError(
                f"git is {str(self.git)[:80]!r}", where="Options", todo="Use off, on or names"
            )

    def digest(self) -> str:
        """Return a digest of the options; equal options have equal digests."""
        kinds = [f"{type(each).__module__}.{type(each).__qualname__}" for each in self.backends]
        spans = [self.span_sweep_seconds, self.span_orphan_seconds, self.propagate]
        chosen: list[object] = [
            self.content,
            self.sync,
            kinds,
            sorted(self.sampling.items()),
            spans,
        ]
        if self.git is not None:
            chosen.append(self.git)
        return digest(json.dumps(chosen).encode())

    def live_exports(self) -> dict[str, str] | None:
        """Return the profile of each backend that declares its destination, by destination."""
        declared = (
            (getattr(b, "destination", None), getattr(b, "profile", "")) for b in self.backends
        )
        found: dict[str, str] = {
            _as_label(destination): _as_label(profile)
            for destination, profile in declared
            if destination
        }
        return found or None


def _as_label(name: object) -> Label:
    return name if isinstance(name, Label) else declared_label(str(name))


def check_interpreter() -> None:
    """Check that a recorder can work in this interpreter.

    Raises:
        UsageError: it cannot run the recorder's thread.
    """
    if not world.has_threads():
        raise UsageError(
            "this interpreter cannot run background threads, as in an isolated subinterpreter",
            todo="Record in the main interpreter of the process, or start the agent as a process",
        )


def check_sampling(options: Options) -> None:
    """Check the sampling rates.

    Raises:
        UsageError: an event kind is unknown or cannot be sampled, or a share is not between 0 and 1.
    """
    wrong = [sampling_error(kind, rate) for kind, rate in options.sampling.items()]
    if found := "; ".join(each for each in wrong if each is not None):
        raise UsageError(
            found,
            where="sampling",
            todo="Use kinds from docs/events.md that are rows of events, or your own kinds with "
            "a dot, each with a number from 0 to 1",
        )


def content_mode(requested: Content | None, options: Options) -> Content:
    """Return the content mode of a new session: the requested one, else that of the options or the environment.

    Raises:
        UsageError: the value is not `off`, `vault` or `export`.
    """
    mode = requested or options.content or world.environ(CONTENT_VARIABLE) or "vault"
    if mode not in get_args(Content):
        raise UsageError(
            f"invalid content mode: {mode[:80]!r}",
            where=CONTENT_VARIABLE if not (requested or options.content) else "content",
            todo="Use off, vault or export",
        )
    return mode  # type: ignore[return-value]  # checked above


def git_mode(options: Options) -> GitMode:
    """Return whether sessions record their git repository; if the variable is invalid, warn and return `off`."""
    mode = options.git or world.environ(GIT_VARIABLE) or "on"
    if mode not in get_args(GitMode):
        warn_once(
            f"git repositories are not recorded: {GIT_VARIABLE} is {mode[:80]!r}; use off, on or names",
            about="git",
        )
        return "off"
    return mode  # type: ignore[return-value]  # checked above


def content_mode_or_off(requested: Content | None, options: Options) -> Content:
    """Return the content mode of a new session; if the value is invalid, warn and return `off`."""
    try:
        return content_mode(requested, options)
    except UsageError as error:
        warn_once(f"the content of sessions is not recorded: {error}", about="content")
        return "off"

"""The system prompt: which of five levels speaks, in sections that stay and sections that change.

A prompt is cached from its start. So what stays for the whole conversation comes first, in the static zone, and
what is asked anew each turn comes after it, in the dynamic zone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json

Written = Callable[[], str | Awaitable[str | None] | None]
"""Writes a section: it may look at the outside. It says an empty text where there is nothing to say, and None where
it cannot tell now and wants to be asked again. A plain function runs in a thread."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a system prompt, with a name."""

    name: str
    """What it is about; one of its kind in a prompt."""
    text: str | Written = field(repr=False)
    """What it says, or a function that the live world calls (`live_world(sections=...)`)."""
    volatile: bool = False
    """Whether it is asked anew each turn; otherwise once a conversation, and kept."""
    reason: str | None = None
    """Why it has to be volatile: each change of it makes the provider read all messages anew."""

    def __post_init__(self) -> None:
        """Refuse a volatile section without a reason, and a reason where there is nothing to give one for.

        Raises:
            UsageError: it is one of these.
        """
        if not self.name:
            raise UsageError("a section of the system prompt has no name")
        if self.volatile and not (self.reason or "").strip():
            raise UsageError(
                f"the section {self.name} is volatile and gives no reason",
                todo="Say why it has to change within a conversation, or let it stay: its changes cost the cache",
            )
        if self.reason and not self.volatile:
            raise UsageError(f"the section {self.name} gives a reason and is not volatile")


Words = str | tuple[Section, ...]
"""What one level says: a text, or sections."""


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A system prompt of five levels: the highest that is given speaks, those below it are silent.

    The order is that of Claude Code (its documented options --system-prompt and --append-system-prompt, and what
    agents and coordinators bring along).
    """

    default: Words | None = None
    """What is said where nobody says otherwise."""
    custom: Words | None = None
    """What the user of the agent wants instead."""
    agent: Words | None = None
    """What a named agent brings along."""
    coordinator: Words | None = None
    """What one that leads other agents is told."""
    override: Words | None = None
    """What replaces all of it, the tail included."""
    append: str | None = None
    """The tail: said after all sections of whichever level speaks, except behind an override."""

    def __post_init__(self) -> None:
        """Refuse two sections of one name.

        Raises:
            UsageError: there are two.
        """
        for level in (self.default, self.custom, self.agent, self.coordinator, self.override):
            names = [] if level is None or isinstance(level, str) else [s.name for s in level]
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise UsageError(
                    f"two sections of the system prompt have one name: {', '.join(doubled)}"
                )

    @property
    def speaking(self) -> tuple[Section, ...]:
        """The sections of the level that speaks; a text is one section."""
        for name in ("override", "coordinator", "agent", "custom", "default"):
            words: Words | None = getattr(self, name)
            if words is not None:
                return (Section(name, words),) if isinstance(words, str) else words
        return ()

    @property
    def tail(self) -> str | None:
        """What is said last."""
        return None if self.override is not None else self.append

    @property
    def asked(self) -> dict[str, Written]:
        """The sections that have to be asked for, by name: what `live_world(sections=...)` takes."""
        return {s.name: s.text for s in self.speaking if not isinstance(s.text, str)}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A system prompt as it goes to the provider."""

    static: tuple[Json, ...] = ()
    """The blocks that stay for the conversation."""
    dynamic: tuple[Json, ...] = ()
    """The blocks that may change with each turn, and what comes after them."""

    @property
    def blocks(self) -> list[Json]:
        """All of it."""
        return [*self.static, *self.dynamic]


def rendered(prompt: SystemPrompt, texts: Mapping[str, str | None]) -> Rendered:
    """Return a system prompt as blocks, one for each zone; `texts` has sections that say what they do not hold."""
    static: list[str] = []
    dynamic: list[str] = []
    for section in prompt.speaking:
        own = section.text if isinstance(section.text, str) else None
        said = texts.get(section.name, own)
        if said and said.strip():
            (dynamic if section.volatile else static).append(said)
    if prompt.tail and prompt.tail.strip():
        (dynamic or static).append(prompt.tail)
    return Rendered(_block(static), _block(dynamic))


def as_given(prompt: str | list[Json]) -> Rendered:
    """Return a system prompt that is a text or blocks: all of it stays."""
    if isinstance(prompt, str):
        return Rendered(_block([prompt] if prompt else []))
    return Rendered(tuple(prompt))


def _block(texts: list[str]) -> tuple[Json, ...]:
    return ({"type": "text", "text": "\n\n".join(texts)},) if texts else ()

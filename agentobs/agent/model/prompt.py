"""The system prompt: one of five levels, with static and volatile sections.

A prompt is cached from its start. The sections that stay for the whole conversation therefore come
first, in the static zone. Sections that are written again each turn follow in the dynamic zone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json

Written = Callable[[], str | Awaitable[str | None] | None]
"""Writes a section and may use outside data. Returns an empty text if there is nothing to say, and
None if it cannot tell now and should be called again. A sync function runs in a thread.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A named part of a system prompt."""

    name: str
    """Its topic; unique within a prompt."""
    text: str | Written = field(repr=False)
    """Its text, or a function that the live world calls (`live_world(sections=...)`)."""
    volatile: bool = False
    """Whether it is written again each turn; otherwise once per conversation."""
    reason: str | None = None
    """Why it must be volatile: each change invalidates the prompt cache of all messages."""

    def __post_init__(self) -> None:
        """Refuse a volatile section without a reason, and a reason for a static section.

        Raises:
            UsageError: one of these was found.
        """
        if not self.name:
            raise UsageError("a section of the system prompt has no name")
        if self.volatile and not (self.reason or "").strip():
            raise UsageError(
                f"the section {self.name} is volatile but gives no reason",
                todo="State why it must change within a conversation, or make it constant: "
                "each change invalidates the cache",
            )
        if self.reason and not self.volatile:
            raise UsageError(f"the section {self.name} gives a reason, but is not volatile")


Words = str | tuple[Section, ...]
"""The content of one level: a text, or sections."""


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A system prompt of five levels: only the highest level that is set is used.

    The order is that of Claude Code (its documented options --system-prompt and
    --append-system-prompt, and the prompts of agents and coordinators).
    """

    default: Words | None = None
    """The default text."""
    custom: Words | None = None
    """The text that the user of the agent sets instead."""
    agent: Words | None = None
    """The text of a named agent."""
    coordinator: Words | None = None
    """The text for an agent that coordinates other agents."""
    override: Words | None = None
    """Replaces everything, including the tail."""
    append: str | None = None
    """The tail: follows all sections of the level in use, except an override."""

    def __post_init__(self) -> None:
        """Refuse duplicate section names.

        Raises:
            UsageError: two sections have the same name.
        """
        for level in (self.default, self.custom, self.agent, self.coordinator, self.override):
            names = [] if level is None or isinstance(level, str) else [s.name for s in level]
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise UsageError(
                    f"two sections of the system prompt have the same name: {', '.join(doubled)}"
                )

    @property
    def speaking(self) -> tuple[Section, ...]:
        """The sections of the level in use; a text counts as one section."""
        for name in ("override", "coordinator", "agent", "custom", "default"):
            words: Words | None = getattr(self, name)
            if words is not None:
                return (Section(name, words),) if isinstance(words, str) else words
        return ()

    @property
    def tail(self) -> str | None:
        """The text at the end."""
        return None if self.override is not None else self.append

    @property
    def asked(self) -> dict[str, Written]:
        """The sections that are written by functions, by name, for `live_world(sections=...)`."""
        return {s.name: s.text for s in self.speaking if not isinstance(s.text, str)}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A system prompt as sent to the provider."""

    static: tuple[Json, ...] = ()
    """The blocks that stay for the conversation."""
    dynamic: tuple[Json, ...] = ()
    """The blocks that may change each turn, and the blocks after them."""

    @property
    def blocks(self) -> list[Json]:
        """All blocks."""
        return [*self.static, *self.dynamic]


def rendered(prompt: SystemPrompt, texts: Mapping[str, str | None]) -> Rendered:
    """Return a system prompt as blocks, one per zone; `texts` has the sections that were written by functions."""
    static: list[str] = []
    dynamic: list[str] = []
    for section in prompt.speaking:
        own = section.text if isinstance(section.text, str) else None
        section_text = texts.get(section.name, own)
        if section_text and section_text.strip():
            (dynamic if section.volatile else static).append(section_text)
    if prompt.tail and prompt.tail.strip():
        (dynamic or static).append(prompt.tail)
    return Rendered(_block(static), _block(dynamic))


def as_given(prompt: str | list[Json]) -> Rendered:
    """Return a system prompt given as text or blocks, all of it static."""
    if isinstance(prompt, str):
        return Rendered(_block([prompt] if prompt else []))
    return Rendered(tuple(prompt))


def _block(texts: list[str]) -> tuple[Json, ...]:
    return ({"type": "text", "text": "\n\n".join(texts)},) if texts else ()

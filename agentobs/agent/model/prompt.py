"""The system prompt: one of five levels, with static and volatile sections.

A prompt is cached from its start. The sections that do not change within a conversation therefore come
first, in the static zone. Volatile sections, which are written again for each turn, follow in the
dynamic zone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json

SectionFunction = Callable[[], str | Awaitable[str | None] | None]
"""Returns the text of a section, which may depend on outside data. An empty text omits the section.
None means that the text is not available yet, and that the function is called again in the next turn.
A sync function runs in a thread.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A named part of a system prompt."""

    name: str
    """Its topic; unique within a prompt."""
    text: str | SectionFunction = field(repr=False)
    """Its text, or a function that the live world calls (`live_world(sections=...)`)."""
    volatile: bool = False
    """Whether the section is written again for each turn; otherwise it is written once per conversation."""
    reason: str | None = None
    """Why the section must be volatile. Required for volatile sections, because each change invalidates the prompt
    cache of all messages.
    """

    def __post_init__(self) -> None:
        """Check that the section has a name, and a reason if and only if it is volatile.

        Raises:
            UsageError: the name or a required reason is missing, or a static section has a reason.
        """
        if not self.name:
            raise UsageError("a section of the system prompt has no name")
        if self.volatile and not (self.reason or "").strip():
            raise UsageError(
                f"the section {self.name} is volatile, but has no reason",
                todo="State why it must change within a conversation, or make it constant: "
                "each change invalidates the cache",
            )
        if self.reason and not self.volatile:
            raise UsageError(f"the section {self.name} has a reason, but is not volatile")


PromptText = str | tuple[Section, ...]
"""The content of one level: a text, or sections."""


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A system prompt of five levels: only the highest level that is set is used.

    The order is that of Claude Code (its documented options --system-prompt and
    --append-system-prompt, and the prompts of agents and coordinators).
    """

    default: PromptText | None = None
    """The default text."""
    custom: PromptText | None = None
    """The text that the user of the agent sets instead of the default."""
    agent: PromptText | None = None
    """The text of a named agent."""
    coordinator: PromptText | None = None
    """The text for an agent that coordinates other agents."""
    override: PromptText | None = None
    """Replaces everything, including the tail."""
    append: str | None = None
    """The tail, which follows all sections of the level in use; not used with an override."""

    def __post_init__(self) -> None:
        """Check that section names are unique.

        Raises:
            UsageError: two sections of a level have the same name.
        """
        for level in (self.default, self.custom, self.agent, self.coordinator, self.override):
            names = [] if level is None or isinstance(level, str) else [s.name for s in level]
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise UsageError(
                    f"two sections of the system prompt have the same name: {', '.join(duplicates)}"
                )

    @property
    def active_sections(self) -> tuple[Section, ...]:
        """The sections of the level in use; a text counts as one section."""
        for name in ("override", "coordinator", "agent", "custom", "default"):
            content: PromptText | None = getattr(self, name)
            if content is not None:
                return (Section(name, content),) if isinstance(content, str) else content
        return ()

    @property
    def tail(self) -> str | None:
        """The text after all sections."""
        return None if self.override is not None else self.append

    @property
    def function_sections(self) -> dict[str, SectionFunction]:
        """The functions that write sections, by section name, for `live_world(sections=...)`."""
        return {s.name: s.text for s in self.active_sections if not isinstance(s.text, str)}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A system prompt as sent to the provider."""

    static: tuple[Json, ...] = ()
    """The blocks that do not change within a conversation."""
    dynamic: tuple[Json, ...] = ()
    """The blocks that may change in each turn, and the blocks after them."""

    @property
    def blocks(self) -> list[Json]:
        """All blocks."""
        return [*self.static, *self.dynamic]


def rendered(prompt: SystemPrompt, texts: Mapping[str, str | None]) -> Rendered:
    """Return a system prompt as blocks, one per zone; `texts` holds the texts that functions wrote, by section name."""
    static: list[str] = []
    dynamic: list[str] = []
    for section in prompt.active_sections:
        fixed_text = section.text if isinstance(section.text, str) else None
        section_text = texts.get(section.name, fixed_text)
        if section_text and section_text.strip():
            (dynamic if section.volatile else static).append(section_text)
    if prompt.tail and prompt.tail.strip():
        (dynamic or static).append(prompt.tail)
    return Rendered(_block(static), _block(dynamic))


def rendered_as_is(prompt: str | list[Json]) -> Rendered:
    """Return a text or a list of blocks as a static system prompt."""
    if isinstance(prompt, str):
        return Rendered(_block([prompt] if prompt else []))
    return Rendered(tuple(prompt))


def _block(texts: list[str]) -> tuple[Json, ...]:
    return ({"type": "text", "text": "\n\n".join(texts)},) if texts else ()

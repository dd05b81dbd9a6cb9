"""The settings that keep a conversation within the context window, and the state of its context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentobs.agent.arguments import check_value
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json

NOTICE_PERCENT, FORCED_PERCENT = 80, 95
"""The shares of the context window that are reported, in percent. At the higher one, the conversation is compacted even
below the threshold of `Context`. Our choice: one long tool result may take several percent of the window.
"""


def reached_level(tokens: int, window_tokens: int) -> int:
    """Return the highest reported share of the window that is reached, in percent; 0 if none is reached."""
    levels = (FORCED_PERCENT, NOTICE_PERCENT)
    return next((each for each in levels if 100 * tokens >= each * window_tokens), 0)


@dataclass(frozen=True, slots=True)
class Context:
    """How a conversation is kept within the context window of the model."""

    window_tokens: int | None = None
    """The window in tokens; None uses the window of the model, see `agentobs.agent.context.context_windows`."""
    is_automatic: bool = True
    """Whether the conversation is compacted at the threshold, and at 95% of the window. If false, it is compacted only
    if the provider refuses it as too long.
    """
    summary_tokens: int = 20_000
    """Maximum tokens of a summary. The same number of tokens is kept free for the summary. Use less for a model with a
    lower response limit.
    """
    reserve_tokens: int = 13_000
    """Additional tokens that are kept free, for the growth in one turn and for estimation errors."""
    kept_results: int = 3
    """The number of most recent tool results that are not trimmed. The provider's own trimming keeps
    the same number (https://docs.claude.com/en/docs/build-with-claude/context-editing, `keep`).
    """
    instructions: str | None = None
    """Additional instructions for a summary."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: a value is too low or of the wrong kind, or no tokens remain for a conversation.
        """
        automatic, instructions = self.is_automatic, self.instructions
        check_value(
            isinstance(automatic, bool), automatic, "Context.is_automatic", "Pass True or False"
        )
        check_value(
            isinstance(instructions, str | None),
            instructions,
            "Context.instructions",
            "Pass a text, or None",
        )
        check_value(
            type(self.window_tokens) in (int, type(None)),
            self.window_tokens,
            "Context.window_tokens",
            "Pass a number of tokens, or None",
        )
        for name in ("summary_tokens", "reserve_tokens", "kept_results"):
            minimum, value = 1 if name == "summary_tokens" else 0, getattr(self, name)
            check_value(type(value) is int, value, f"Context.{name}", "Pass a number")
            if value < minimum:
                raise UsageError(
                    f"{name} is {value}",
                    where=f"Context.{name}",
                    todo=f"Set {name} to {minimum} or more",
                )
        if self.window_tokens is not None and self.threshold(self.window_tokens) < 1:
            raise UsageError(
                f"no tokens remain for a conversation: the window has {self.window_tokens:,} tokens, "
                f"and {self._reserved:,} are kept free",
                where="Context.window_tokens",
                todo="Set a larger window, or lower summary_tokens and reserve_tokens",
            )

    def threshold(self, window_tokens: int) -> int:
        """Return the token count at which a conversation is compacted if the window has this size."""
        return window_tokens - self._reserved

    @property
    def _reserved(self) -> int:
        return self.summary_tokens + self.reserve_tokens


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The last known token count of a conversation."""

    tokens: int
    messages: int
    """The number of messages in the count; later messages are estimated."""
    last: Json = field(compare=False, repr=False)
    """The last counted message."""

    def is_valid_for(self, messages: Sequence[Json]) -> bool:
        """Return whether the last counted message is still at its position in the messages.

        False if messages before it were removed, because its position then belongs to a newer message.
        """
        return 0 < self.messages <= len(messages) and messages[self.messages - 1] is self.last


@dataclass(slots=True)
class ContextProgress:
    """The state of a conversation's context; it outlives a run."""

    counted: TokenCount | None = None
    """The last known count; None until the first response."""
    reported_window: int | None = None
    """The window that the provider reported when it refused a prompt as too long."""
    started_compactions: int = 0
    """Number of compactions that were started, including failed compactions."""
    failures: int = 0
    """Number of consecutive failed compactions."""
    failed_summaries: int = 0
    """Number of consecutive automatic compactions whose summary could not be used."""
    last_turn: int | None = None
    """The turn for which the conversation was last compacted; None if it has never been compacted."""
    level: int = 0
    """The share of the window that was last reported, in percent; 0 if the conversation is shorter."""
    tried_reactive_compaction: bool = False
    """Whether a compaction was tried because the provider refused a prompt as too long. It is tried only once."""

"""Settings that keep a conversation within its context window, and the progress so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json


@dataclass(frozen=True, slots=True)
class Context:
    """Settings that keep a conversation within the model's context window."""

    window_tokens: int | None = None
    """The window in tokens; None for the model's own, see `agentobs.agent.context.context_windows`."""
    is_automatic: bool = True
    """Whether it is compacted at the threshold; otherwise only if the provider refuses it."""
    summary_tokens: int = 20_000
    """Reserve for a summary, and its maximum tokens. Use less for a model with a lower response
    limit.
    """
    reserve_tokens: int = 13_000
    """Additional reserve for the growth in one turn and for estimation errors."""
    kept_results: int = 3
    """How many of the last tool results are not trimmed. The same number as the provider's own
    trimming (https://docs.claude.com/en/docs/build-with-claude/context-editing, `keep`).
    """
    instructions: str | None = None
    """Additional instructions for a summary."""

    def __post_init__(self) -> None:
        """Refuse values that leave no room for a conversation."""
        for name in ("summary_tokens", "reserve_tokens", "kept_results"):
            if getattr(self, name) < (1 if name == "summary_tokens" else 0):
                raise UsageError(
                    f"{getattr(self, name)} as {name}",
                    where=f"Context.{name}",
                    todo="Give a number of at least zero, for a summary at least one",
                )
        if self.window_tokens is not None and self.threshold(self.window_tokens) < 1:
            raise UsageError(
                f"a window of {self.window_tokens:,} tokens, of which {self._reserved:,} are kept free",
                where="Context.window_tokens",
                todo="Give a larger window, or smaller summary_tokens and reserve_tokens",
            )

    def threshold(self, window_tokens: int) -> int:
        """Return the token count at which a conversation in such a window is compacted."""
        return window_tokens - self._reserved

    @property
    def _reserved(self) -> int:
        return self.summary_tokens + self.reserve_tokens


@dataclass(frozen=True, slots=True)
class Counted:
    """The last known token count of a conversation."""

    tokens: int
    messages: int
    """The number of messages counted; later messages are estimated."""
    last: Json = field(compare=False, repr=False)
    """The last counted message."""

    def holds(self, messages: Sequence[Json]) -> bool:
        """Return whether the last counted message is still at its position.

        If earlier messages were removed, the count would wrongly include newer messages.
        """
        return 0 < self.messages <= len(messages) and messages[self.messages - 1] is self.last


@dataclass(slots=True)
class Progress:
    """The state of a conversation's context; it outlives a run."""

    counted: Counted | None = None
    """None until the first response."""
    window_told: int | None = None
    """The window as reported by the provider when it refused a prompt."""
    begun: int = 0
    """Number of compactions started, including failures."""
    failures: int = 0
    """Consecutive failed compactions."""
    last_turn: int | None = None
    """The turn before the last compaction."""
    has_reacted: bool = False
    """Whether it was compacted because the provider refused it, which happens once."""

"""How a conversation is kept within its window, and what is known of that so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json


@dataclass(frozen=True, slots=True)
class Context:
    """How a conversation is kept within the model's window."""

    window_tokens: int | None = None
    """The window, in tokens; None is that of the model, see `agentobs.agent.context.context_windows`."""
    is_automatic: bool = True
    """Whether it is made shorter when it has reached the threshold; else only when the provider refuses it."""
    summary_tokens: int = 20_000
    """Room for a summary, and the most tokens that one may have. A model whose answers must be shorter needs less."""
    reserve_tokens: int = 13_000
    """Room beside that: for what a turn adds, and for the error of the estimate."""
    kept_results: int = 3
    """So many of the last tool results are not trimmed. As many as the provider's own trimming keeps
    (https://docs.claude.com/en/docs/build-with-claude/context-editing, `keep`)."""
    instructions: str | None = None
    """What a summary has to mind besides what it minds anyway."""

    def __post_init__(self) -> None:
        """Refuse what leaves no room for a conversation."""
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
        """Return from how many tokens on a conversation in such a window is made shorter."""
        return window_tokens - self._reserved

    @property
    def _reserved(self) -> int:
        return self.summary_tokens + self.reserve_tokens


@dataclass(frozen=True, slots=True)
class Counted:
    """How long a conversation was when it was last counted."""

    tokens: int
    messages: int
    """How many messages those are; what follows them is estimated."""
    last: Json = field(compare=False, repr=False)
    """The last of them."""

    def holds(self, messages: Sequence[Json]) -> bool:
        """Return whether a conversation still has at that place what was counted last.

        Where messages were taken out before it the count would cover newer ones, and hide them.
        """
        return 0 < self.messages <= len(messages) and messages[self.messages - 1] is self.last


@dataclass(slots=True)
class Progress:
    """What is known of a conversation's context so far; it outlives a run."""

    counted: Counted | None = None
    """None until the first answer."""
    window_told: int | None = None
    """The window as the provider told it when it refused a prompt."""
    begun: int = 0
    """Compactions that were begun, those that failed included."""
    failures: int = 0
    """Those that failed since the last one that did not."""
    last_turn: int | None = None
    """The turn before which it was last made shorter."""
    has_reacted: bool = False
    """Whether it was made shorter because the provider refused it; that happens once."""

"""Claude Code's own session logs (`~/.claude/projects/*/*.jsonl`): what was used, and whole sessions to import."""

from __future__ import annotations

from exporters.claude_code.usage import SYNTHETIC, Response, usage_of

__all__ = ["SYNTHETIC", "Response", "usage_of"]

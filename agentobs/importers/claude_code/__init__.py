"""Claude Code's own session logs (`~/.claude/projects/*/*.jsonl`): what was used, and whole sessions to import."""

from __future__ import annotations

from agentobs.importers.claude_code.transcript_usage import SYNTHETIC, Response, usage_of

__all__ = ["SYNTHETIC", "Response", "usage_of"]

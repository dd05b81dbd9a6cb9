"""Claude Code's session logs (`~/.claude/projects/*/*.jsonl`): reading their usage, and importing complete sessions."""

from __future__ import annotations

from agentobs.importers.claude_code.transcript_usage import SYNTHETIC, Response, usage_of

__all__ = ["SYNTHETIC", "Response", "usage_of"]

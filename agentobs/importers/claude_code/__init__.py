"""Claude Code's own session logs (`~/.claude/projects/*/*.jsonl`): their usage, and the import of whole sessions."""

from __future__ import annotations

from agentobs.importers.claude_code.transcript_usage import SYNTHETIC, Response, usage_of

__all__ = ["SYNTHETIC", "Response", "usage_of"]

"""Replay recorded commands: programs in any language, which get their responses from a served fixture."""

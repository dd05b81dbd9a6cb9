"""The journal: append-only segment files, their compression and their home directory."""

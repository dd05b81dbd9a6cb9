"""Client configuration: copies of the MCP configuration of a recorded command, in which each server has a tee.

The files of the user are never changed. A copy replaces the value of the option `--mcp-config` of a recorded command.
Claude Code also reads servers from its own files; it gets a copy of those that need no further approval as an
additional `--mcp-config`, whose servers take the place of those with the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

OPTION = "--mcp-config"
STRICT = "--strict-mcp-config"
CLAUDE = "claude"
SIZE_MAX = 32 * 1024 * 1024
"""The longest file with a configuration. Our choice: Claude Code keeps its history in the same file."""

Wrap = Callable[[str, dict[str, Any]], dict[str, Any] | None]
"""Returns the configuration of a server with a tee, given its name and its configuration; None to leave it."""
Write = Callable[[dict[str, Any]], Path]
"""Stores a copy of a configuration, and returns its path."""


def with_tees(
    command: list[str],
    directory: Path,
    environment: Mapping[str, str],
    write: Write,
    wrap: Wrap,
) -> int:
    """Replace the MCP configuration in the arguments of a command by copies with tees; return the number of tees.

    Args:
        command: the program and its arguments, which are changed.
        directory: its working directory.
        environment: its environment variables.
        write: stores a copy.
        wrap: adds a tee to a server.

    Raises:
        OSError: a copy cannot be stored; the arguments of the command are unchanged then.
    """
    count, changed = 0, list(command)
    for at in _values_of_option(command):
        prefix = f"{OPTION}=" if command[at].startswith(f"{OPTION}=") else ""
        value = command[at].removeprefix(prefix)
        found = _loaded(value, directory)
        if found is None:
            continue  # the command reports what is wrong with it
        copy, tees = _wrapped(found, wrap)
        if tees:
            changed[at] = prefix + str(write(copy))
            count += tees
    if Path(command[0]).name == CLAUDE and STRICT not in command:
        servers = dict(_claude_servers(directory, environment))
        copy, tees = _wrapped({"mcpServers": servers}, wrap)
        if tees:
            # The option takes several values. With `=`, the arguments that follow are not values of it.
            changed[1:1] = [f"{OPTION}={write(copy)}"]
            count += tees
    command[:] = changed
    return count


def _values_of_option(command: list[str]) -> Iterator[int]:
    """Yield the positions of the values of the option. Several values may follow it."""
    is_value = False
    for at, argument in enumerate(command):
        if argument == "--":
            return
        if argument.startswith(f"{OPTION}="):
            yield at
            is_value = False
        elif argument.startswith("-"):
            is_value = argument == OPTION
        elif is_value and at > 0:
            yield at


def _loaded(value: str, directory: Path) -> dict[str, Any] | None:
    """Return a configuration from a file or from JSON text; None if it is not valid."""
    try:
        text = value
        if not value.lstrip().startswith("{"):
            path = directory / value
            if path.stat().st_size > SIZE_MAX:
                return None
            text = path.read_text("utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _wrapped(config: dict[str, Any], wrap: Wrap) -> tuple[dict[str, Any], int]:
    """Return a copy of a configuration with tees, and the number of tees."""
    servers = config.get("mcpServers")
    if not isinstance(servers, dict):
        return config, 0
    copies, count = {}, 0
    for name, server in servers.items():
        wrapped = wrap(name, server) if isinstance(server, dict) else None
        copies[name] = server if wrapped is None else wrapped
        count += wrapped is not None
    return {**config, "mcpServers": copies}, count


def _claude_servers(
    directory: Path, environment: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the servers that Claude Code starts in a directory without further approval.

    These are the servers of the user, the servers of the project's file that the user has enabled by name, and the
    local servers; later ones take the place of earlier ones. Source: code.claude.com/docs/en/mcp, 2026-11.
    """
    root = environment.get("CLAUDE_CONFIG_DIR")
    home = environment.get("HOME", "")
    settings = _loaded(str(Path(root or home) / ".claude.json"), directory) or {}
    yield from _servers(settings)
    projects = settings.get("projects")
    known = projects.get(str(directory)) if isinstance(projects, dict) else None
    known = known if isinstance(known, dict) else {}
    enabled = known.get("enabledMcpjsonServers")
    enabled = enabled if isinstance(enabled, list) else []
    for name, server in _servers(_loaded(".mcp.json", directory) or {}):
        if name in enabled:
            yield name, server
    yield from _servers(known)


def _servers(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    servers = config.get("mcpServers")
    for name, server in servers.items() if isinstance(servers, dict) else ():
        if isinstance(server, dict):
            yield name, server


__all__ = ["with_tees"]

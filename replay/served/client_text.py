"""Text that coding agents insert into requests, and values of the machine that their requests name.

Neither the user nor the model wrote the inserted text, so it is not part of a conversation: it names the date, the
directory, the state of the repository, and settings. The forms are those of Claude Code 2.1 (2026-11). Text of these
forms is left out on both sides before two requests are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

AGENT_HEADER = "x-claude-code-agent-id"
"""The header with the ID of a sub-agent, which is new in each run."""
SESSION_HEADER = "x-claude-code-session-id"
"""The header with the ID of the session, which is new in each run."""
CLIENT_HEADERS = (AGENT_HEADER, SESSION_HEADER)

IDENTITY_KEY = "metadata"
"""The key of a request body that identifies the user and the session."""

_TASK = re.compile(r"<task-notification>.*?</task-notification>", re.DOTALL)
"""The report about a background task, which a client inserts when the task ends: in any turn, depending on timing."""

TASK = re.compile(
    rb"<task-id>(?P<task>[\w-]{1,64})</task-id>(?:\s|\\n)*(?:<tool-use-id>(?P<call>[\w-]{1,128})</tool-use-id>)?"
)
"""The IDs of a background task and of the call that started it in such a report, in a request body."""

_REPORT = re.compile(r".*?</task-notification>", re.DOTALL)

_INSERTED = re.compile(
    r"<system-reminder>\n.*?\n</system-reminder>[ \t]*$"
    r"|<env>(?:(?!</env>).)*?^Working directory:.*?</env>"
    r"|^x-anthropic-billing-header:[^\n]*"
    r"|^# Environment\nYou have been invoked in the following environment:.*?(?=^# |\Z)"
    r"|^gitStatus: This is the git status.*?(?=^# |\Z)",
    re.DOTALL | re.MULTILINE,
)
_PHRASES = (
    *("<system-reminder>", "<env>", "x-anthropic-billing-header:"),
    *("You have been invoked", "gitStatus:", "uration", "URATION"),
)
"""Each text that changes contains one of these phrases, which are found faster than the patterns."""
_USAGE = re.compile(r"<usage>.*?</usage>", re.DOTALL)
"""The usage of a sub-agent, which its client inserts into its result."""
_DURATION = re.compile(r"(\b(?:total_?)?duration_?ms\b(?:\"?\s*[:=]\s*|>))\d+", re.IGNORECASE)
"""A measured duration in a usage."""


def without_inserted_text(text: str) -> str:
    """Return a text without what the client inserted, and with measured durations replaced by 0."""
    if not any(phrase in text for phrase in _PHRASES):
        return text
    return _USAGE.sub(lambda found: _DURATION.sub(r"\g<1>0", found[0]), _INSERTED.sub("", text))


def with_sorted_notifications(text: str) -> str:
    """Return a text with its reports about background tasks in a fixed order: tasks may end in any order."""
    parts = _REPORT.findall(text)
    if len(parts) < 2:
        return text
    rest = text[sum(map(len, parts)) :]
    return "".join(sorted(part.strip() for part in parts)) + rest


def without_notifications(text: str) -> str:
    """Return a text without reports about background tasks."""
    return _TASK.sub("", text)


_DIRECTORY = re.compile(
    r"(?:[Pp]rimary w|\bW|\bw)orking directory: (/[^\n<\"`]+)|\bcwd: (/[^\n<\"`]+)"
)
_MEMORY = re.compile(r"`(/[^`\n]+)/projects/([^/`\n]+)/memory/`")
_OLD_USER = re.compile(r"_session_([0-9a-f-]{36})\Z")


def machine_values(body: Any, headers: dict[str, str]) -> dict[str, str]:
    """Return the values of the machine and the session that a request names, by label.

    The labels are `session_id`, `device_id`, `account_uuid`, `directory`, `project`, `configuration` and `home`. The
    project is the `slug` of the repository, which may be above the working directory. A value that the request does not
    name is left out.
    """
    found: dict[str, str] = {}
    for text in _prompt_texts(body):
        if not any(phrase in text for phrase in ("orking directory: /", "cwd: /", "/memory/`")):
            continue
        if "directory" not in found and (match := _DIRECTORY.search(text)):
            found["directory"] = (match[1] or match[2]).strip().rstrip("/")
        if "configuration" not in found and (match := _MEMORY.search(text)):
            found["configuration"], found["project"] = match[1], match[2]
            if match[1].endswith("/.claude"):
                found["home"] = match[1].removesuffix("/.claude")
    if SESSION_HEADER in headers:
        found["session_id"] = headers[SESSION_HEADER]
    return {name: value for name, value in {**found, **_identity(body)}.items() if value}


def slug(directory: str) -> str:
    """Return the name under which Claude Code keeps the data of a directory: each other character becomes a hyphen."""
    return re.sub(r"[^A-Za-z0-9]", "-", directory)


def _identity(body: Any) -> dict[str, str]:
    """Return the IDs in the metadata of a request: JSON in the text `user_id`, or the session in its older form."""
    metadata = body.get(IDENTITY_KEY) if isinstance(body, dict) else None
    text = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        return {}
    if match := _OLD_USER.search(text):
        return {"session_id": match[1]}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    names = ("session_id", "device_id", "account_uuid")
    named = value if isinstance(value, dict) else {}
    return {name: str(named[name]) for name in names if isinstance(named.get(name), str)}


def _prompt_texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a request, without tool definitions; depth first."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < 8:
        for each in value:
            yield from _prompt_texts(each, depth + 1)
    elif isinstance(value, dict) and depth < 8:
        for key, each in value.items():
            if key not in ("tools", "input", IDENTITY_KEY):
                yield from _prompt_texts(each, depth + 1)

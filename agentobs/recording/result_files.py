"""Result files: tool results that are too long for the model, stored as files of their session.

<home>/sessions/<session id>/results/     mode 0700
  <number>-<tool_use id>.txt              mode 0600
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from pathlib import Path

from agentobs import tracing
from agentobs.errors import HomeError, RecordingError
from agentobs.recording.session import opened, start_recorder

SESSION_BYTES_MAX = 1 << 30
"""The default limit for the total size of the result files of one session, in bytes. Our choice."""

_CUT = "\n[cut here: the results of this session may use {:,} bytes]\n"

_lock = threading.Lock()


def keep_result(tool_use_id: str, text: str, *, session_bytes_max: int = SESSION_BYTES_MAX) -> str:
    """Write a redacted tool result to the directory of its session, and return the path.

    A result that exceeds the limit of the session is truncated, with a note at the end of the file. The file is for the
    model and therefore plain text, so it is not written if content must not be stored in plain text.

    Args:
        tool_use_id: the call that the result belongs to.
        text: the complete result.
        session_bytes_max: the limit for the total size of the result files of the session, in bytes.

    Raises:
        RecordingError: there is no current session, it is not recorded, its content is off or encrypted, or its limit
            is reached.
        HomeError: the directory of the session cannot be used.
        OSError: the file cannot be written.
    """
    here = tracing.place()
    recorder = start_recorder() if here is not None else None
    if here is None or recorder is None:
        raise RecordingError(
            "results are kept only inside a session that is recorded",
            todo="Open one with agentobs.session(...)",
        )
    session = opened(here.session_id)
    is_off = session is not None and session.content == "off"
    if is_off or recorder.is_sealed:
        raise RecordingError(
            f"the content of this session is {'off' if is_off else 'sealed'}: its results must not be written to files",
            todo="Keep long results yourself, or keep the session's content in the vault without encryption",
        )
    data = recorder.redactor.redact(text.encode("utf-8", "replace"))
    with _lock:
        folder = _folder(recorder.home.path, here.session_id)
        before = sorted(folder.iterdir())
        remaining = session_bytes_max - sum(path.lstat().st_size for path in before)
        if remaining < len(data):
            note = _CUT.format(session_bytes_max).encode()
            if remaining <= len(note):
                raise RecordingError(
                    f"the results of this session already use {session_bytes_max:,} bytes",
                    where=str(folder),
                    todo="Increase session_bytes_max",
                )
            data = _truncated(data, remaining - len(note)) + note
        return str(_write(folder, len(before) + 1, _file_name(tool_use_id), data))


def _folder(home: Path, session_id: str) -> Path:
    """Return the directory of the results of a session, and create it if it is missing; links are not followed."""
    folder = home
    for name in ("sessions", _file_name(session_id), "results"):
        folder = folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise HomeError(
                "results cannot be stored here: this is not a directory, or it belongs to another user",
                where=str(folder),
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
    return folder


def _write(folder: Path, number: int, name: str, data: bytes) -> Path:
    """Write a file with the first free number; if that fails, remove it."""
    while True:
        path = folder / f"{number}-{name}.txt"
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            number += 1
            continue
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path


_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _file_name(identifier: str) -> str:
    """Return an ID unchanged if it is safe as a file name; otherwise a digest of it."""
    if _SAFE.fullmatch(identifier):
        return identifier
    return hashlib.blake2b(identifier.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _truncated(data: bytes, size: int) -> bytes:
    """Return the first `size` bytes of a longer UTF-8 text, without an incomplete character at the end."""
    while size and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]

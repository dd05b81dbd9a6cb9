"""Encryption: content lines that only the holder of a key can read.

An encrypted line keeps the fields that relate it to other lines (its content ID, its session, the line that it
continues) and contains the rest as AES-GCM ciphertext. Each segment has its own key, which is derived from the user's
key. The authenticated data are the segment, the number and kind of the line, and its content ID, so one line cannot
replace another. Nonces are random, and a segment key encrypts only the lines of its segment, so nonces do not repeat.
Text is compressed before it is encrypted, because ciphertext cannot be compressed.

The key is never written to disk. It comes from `AGENTOBS_CONTENT_KEY` (64 hex digits), or from a file that no other
user can read; `Options.seal_key` or `AGENTOBS_CONTENT_KEY_FILE` names this file.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.errors import DamagedError, RecordingError, UsageError
from agentobs.installation import install_extra

KEY_VARIABLE = "AGENTOBS_CONTENT_KEY"
FILE_VARIABLE = "AGENTOBS_CONTENT_KEY_FILE"

KEY_BYTES = 32
"""The key length of AES-256."""
NONCE_BYTES = 12
"""96 bits, which NIST SP 800-38D recommends for GCM."""
COMPRESSED_MIN = 256
"""Shorter texts are not compressed, because compression would save too little. Our choice."""
_CLEAR = ("content_id", "session_id", "base")
"""The fields of a line that stay readable; they are IDs, which the facts contain as well."""
_PLAIN, _DEFLATED = b"\0", b"\1"


class Sealer:
    """Encrypts and decrypts the content lines of one segment."""

    def __init__(self, key: bytes, segment_id: str) -> None:
        """Derive the key of the segment.

        Raises:
            UsageError: the encryption package is not installed.
        """
        # Imported only if a key is set: few users need it, and it costs 30 ms.
        try:
            aead = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ImportError as error:
            raise UsageError(
                "sealing content needs the package cryptography",
                where=KEY_VARIABLE,
                todo=f"{install_extra('sealed')}, or unset the key",
            ) from error
        self.segment_id = segment_id
        self.key_id = key_id(key)
        segment_key = hashlib.blake2b(
            segment_id.encode(), key=key, person=b"agentobs sealing", digest_size=32
        )
        self._cipher = aead.AESGCM(segment_key.digest())

    def seal(self, kind: str, value: Mapping[str, Any], sequence: int) -> dict[str, Any]:
        """Return the encrypted form of a content line."""
        clear = {name: value[name] for name in _CLEAR if name in value}
        rest = {name: inner for name, inner in value.items() if name not in clear}
        text = json.dumps(rest, ensure_ascii=False, separators=(",", ":"))
        nonce = world.random_bytes(NONCE_BYTES)
        plaintext = _compressed(text.encode("utf-8", "surrogatepass"))
        associated = self._associated_data(kind, str(clear.get("content_id")), sequence)
        sealed = nonce + self._cipher.encrypt(nonce, plaintext, associated)
        return {
            **clear,
            "sealed": base64.b64encode(sealed).decode(),
            "kind": kind,
            "line": sequence,
            "key": self.key_id,
        }

    def open(self, value: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Decrypt a content line.

        Raises:
            RecordingError: the line was encrypted with a different key.
            DamagedError: the line was changed.
        """
        if value.get("key") != self.key_id:
            raise RecordingError(
                f"the content is sealed with a different key ({self.key_id})",
                where=where,
                todo=f"Set {KEY_VARIABLE} or {FILE_VARIABLE} to the key with ID {value.get('key')}",
            )
        try:
            sealed = base64.b64decode(value["sealed"])
            content_id = str(value.get("content_id"))
            associated = self._associated_data(value["kind"], content_id, value["line"])
            plaintext = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
        except Exception as error:  # the cipher's package has its own exception class
            raise DamagedError(
                f"sealed content {value.get('content_id')} cannot be decrypted: it was changed",
                where=where,
                todo="agentobs verify lists all damage",
            ) from error
        is_compressed, text = plaintext[:1] == _DEFLATED, plaintext[1:]
        text = zlib.decompress(text) if is_compressed else text
        rest = json.loads(text.decode("utf-8", "surrogatepass"))
        return {**{name: value[name] for name in _CLEAR if name in value}, **rest}

    def _associated_data(self, kind: str, content_id: str, sequence: int) -> bytes:
        return f"agentobs {self.segment_id} {sequence} {kind} {content_id}".encode()


def decrypted_line(value: dict[str, Any], segment_id: str, where: str) -> dict[str, Any]:
    """Decrypt a content line if it is encrypted; return other lines unchanged.

    Raises:
        RecordingError: there is no key, or the line was encrypted with a different key.
        UsageError: the key cannot be used.
        DamagedError: the line was changed.
    """
    if "sealed" not in value:
        return value
    key = content_key()
    if key is None:
        raise RecordingError(
            "the content is sealed, and there is no key",
            where=where,
            todo=f"Set {KEY_VARIABLE} or {FILE_VARIABLE} to the key with ID {value.get('key')}; "
            "costs, spans and events can be read without it",
        )
    return Sealer(key, segment_id).open(value, where)


def content_key(file: str | os.PathLike[str] | None = None) -> bytes | None:
    """Return the key that content is encrypted with, or None if there is none.

    Args:
        file: the file that holds the key; by default, the environment variables apply.

    Raises:
        UsageError: the key is invalid, or other users can read the file.
    """
    text = None if file else world.environ(KEY_VARIABLE)
    key_file = file or (None if text else world.environ(FILE_VARIABLE))
    if key_file:
        return _parse_key(_read(Path(key_file)), str(key_file))
    return _parse_key(text, KEY_VARIABLE) if text else None


def key_id(key: bytes) -> str:
    """Return a short identifier of a key that does not reveal it: 8 hex digits."""
    return hashlib.blake2b(b"name", key=key, person=b"agentobs sealing", digest_size=4).hexdigest()


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
                raise UsageError(
                    "the file with the content key is not a regular file, or others can read it",
                    where=str(path),
                    todo="Run: chmod 600 FILE",
                )
            return file.read(4096).decode("ascii", "replace")
    except OSError as error:
        raise UsageError(
            f"the content key cannot be read: {error.strerror}", where=str(path)
        ) from error


def _parse_key(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(
            "a content key must have 64 hex digits",
            where=where,
            todo="Create one with `openssl rand -hex 32`",
        )
    return key


def _compressed(text: bytes) -> bytes:
    """Return a text with a first byte that shows whether the rest is compressed."""
    if len(text) >= COMPRESSED_MIN:
        small = zlib.compress(text)
        if len(small) < len(text):
            return _DEFLATED + small
    return _PLAIN + text

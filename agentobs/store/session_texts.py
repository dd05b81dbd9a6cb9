"""Session texts: the title and the texts of a session, read from its content.

A title is derived from the first prompt when it is shown, and nothing is written for it while the agent runs. It
therefore follows the content: without content there is no title, and pruning the content removes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from agentobs.errors import AgentobsError
from agentobs.provider.dialect import Block, Turn
from agentobs.provider.registry import message_of, received_messages, sent_messages
from agentobs.recording.vault.vault import Vault
from agentobs.store.port import Store

TITLE_CHARACTERS = 200
"""The maximum length of a title that is derived from a prompt."""
CANDIDATES = 8
"""The number of requests at the start of a session in which a prompt is looked for. Our choice: a managed agent gets
its prompt after about four requests that create it.
"""
BLOCK_CHARACTERS = 100_000
"""The maximum number of characters at the start of each text that a search covers. Our choice."""
SESSION_CHARACTERS = 8_000_000
"""The maximum number of characters of one session that a search covers. Our choice: more than a thousand pages."""

_TAGGED = re.compile(r"<([a-z][a-z_-]{0,40})>.*?</\1>", re.DOTALL)
"""A part of a prompt that a client added, such as `<system-reminder>...</system-reminder>`."""
_COMMAND = re.compile(
    r"<command-name>(.*?)</command-name>.*?(?:<command-args>(.*?)</command-args>|\Z)", re.DOTALL
)
"""A command that a client expands, with its arguments."""


def first_prompts(store: Store, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the title of each session that its first prompt provides, "" if there is none; by session ID."""
    rows = store.rows(
        "internal/first_requests", session_ids=list(session_ids), most=CANDIDATES
    ).rows
    found: dict[str, str] = {}
    by_segment: dict[str, list[tuple[str, str]]] = {}
    for session_id, segment_id, content_id, _ in rows:
        by_segment.setdefault(str(segment_id), []).append((str(session_id), str(content_id)))
    for segment_id, places in by_segment.items():
        vault = Vault(store.home, segment_id)
        for session_id, content_id in places:
            if not found.get(session_id):
                found[session_id] = _title(vault, content_id)
    return {each: found.get(each, "") for each in session_ids}


def prompt_title(prompt: str) -> str:
    """Return a prompt as a title: one line without the parts that a client added."""
    plain = " ".join(_TAGGED.sub(" ", prompt).split())
    if not plain and (command := _COMMAND.search(prompt)) is not None:
        plain = " ".join(f"{command[1]} {command[2] or ''}".split())
    plain = plain or " ".join(prompt.split())
    return plain if len(plain) <= TITLE_CHARACTERS else plain[: TITLE_CHARACTERS - 1] + "\u2026"


def content_text(store: Store, session_id: str) -> str:
    """Return the texts of a session, each once, separated by NUL characters: prompts, responses, inputs and results of
    tools, without system prompts and declarations of tools.

    Raises:
        AgentobsError: the content is missing, or cannot be decrypted.
        OSError: a content file cannot be read.
    """
    parts: dict[str, None] = {}
    characters = 0
    for text in _texts(store, session_id):
        short = text[:BLOCK_CHARACTERS]
        if short and short not in parts:
            parts[short] = None
            characters += len(short)
            if characters >= SESSION_CHARACTERS:
                break
    return "\0".join(parts)


def _texts(store: Store, session_id: str) -> Iterator[str]:
    vaults: dict[str, Vault] = {}
    for row in store.rows("internal/content_requests", session_id=session_id).dicts():
        segment_id = str(row["segment_id"])
        if segment_id not in vaults:
            vaults = {segment_id: Vault(store.home, segment_id, session_id)}
        vault = vaults[segment_id]
        if not row["is_repeated"]:
            yield from _request_texts(vault, str(row["request_content"]))
        if row["response_content"] is not None:
            path = str(vault.value(str(row["request_content"]))["path"])
            answer = vault.answer(str(row["response_content"]))
            yield from _block_texts(message_of(path, answer).blocks)
            for turn in received_messages(path, answer):
                yield from _block_texts(turn.blocks)


def _title(vault: Vault, content_id: str) -> str:
    """Return the title that the last prompt in a request provides; "" if there is none or it cannot be read.

    Earlier messages may belong to a session that this session continues. If the prompt has several messages, the first
    one counts, because a client may append to it. If the request does not end with a prompt, for example because it
    continues tool calls, the first text of the user counts.
    """
    return prompt_title(prompt_of(vault, content_id))


def prompt_of(vault: Vault, content_id: str) -> str:
    """Return the last prompt in a request, as its title is derived from it; "" if there is none or it cannot be read.

    Args:
        vault: the vault of the segment of the request.
        content_id: the content ID of the request.
    """
    try:
        history = _turns(vault, content_id)
    except (AgentobsError, OSError):
        return ""
    prompt = list(takewhile(lambda turn: turn.role == "user", reversed(history)))
    users = (turn for turn in reversed(history) if turn.role == "user")
    texts = (turn.text for turn in (*reversed(prompt), *users) if turn.text.strip())
    return next(texts, "")


def _request_texts(vault: Vault, content_id: str) -> Iterator[str]:
    for turn in _turns(vault, content_id):
        yield from _block_texts(turn.blocks)


def _turns(vault: Vault, content_id: str) -> Sequence[Turn]:
    """Return the messages of a request; none if its body is not JSON."""
    try:
        return sent_messages(json.loads(vault.body(content_id).decode("utf-8", "surrogatepass")))
    except (ValueError, RecursionError):
        return ()


def _block_texts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        yield block.text
        if block.kind in ("call", "provider_call"):
            value = block.value
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{block.name} {text}"

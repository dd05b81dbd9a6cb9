"""TinyChat, a fictional provider: a chat API whose paths, keys and framing differ from every real API.

A request is `{"who": MODEL, "chat": [ENTRY, ...], "live": BOOL}`. An entry is `{"by": "person" | "bot", "say": TEXT}`,
may contain `"do": [{"ref": ID, "fn": NAME, "with": INPUT}]` and, as a result, `{"by": "tool", "ref": ID, "got":
VALUE}`. A response is `{"bot": {"ref": ID, "who": MODEL, "say": TEXT, "do": [...]}, "end": WORD, "spent": {"in": N,
"out": N}}`. A stream consists of lines of JSON: chunks of `say`, then `do`, then the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from agentobs.provider.dialect import (
    Block,
    BodyPlace,
    DeltaShape,
    Dialect,
    Draft,
    Message,
    ResponseFacts,
    SealedShape,
    ToolCall,
    Turn,
    json_bytes,
    text_of,
)
from agentobs.records.exchanges import Answer, Question
from agentobs.records.facts import AttemptOutcome
from agentobs.records.labels import Label
from agentobs.records.usage import Certainty, Usage, unreported_usage

LINES = "application/x-tiny-lines"


class TinyChat(Dialect):
    """The dialect of TinyChat."""

    name = "tinychat"
    terms = frozenset({"more", "done", "tiny-1", "weather"})
    history_key = "chat"
    turn_path = "/tiny/chat"
    request_headers = ("content-type", "tiny-edition")
    meaningful_headers = ("tiny-edition",)
    response_headers = ("content-type", "tiny-ref")
    credential_headers = ("tiny-pass",)
    options = frozenset({"who", "chat", "live"})
    delta_shape = DeltaShape(
        marker=b'"piece"',
        text=re.compile(rb'"piece": "((?:[^"\\]|\\.)*)"'),
        field=re.compile(rb'"piece": "((?:[^"\\]|\\.)*)"'),
    )

    sealed_shape = SealedShape(
        markers=(b"stamp",), value=re.compile(rb'"(stamp)": "([A-Za-z0-9+/]{64,}+={0,2})')
    )

    def is_model_call(self, path: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request is a chat."""
        return self.owns(path)

    def owns(self, path: str) -> bool:
        """Return whether a path belongs to this provider."""
        return path.startswith("/tiny/")

    def makes_turns(self, path: str) -> bool:
        """Return whether a request is a turn."""
        return path == self.turn_path

    def endpoint(self, path: str) -> Label:
        """Return the path, because there is only one endpoint."""
        return Label(path if path == self.turn_path else "/tiny/:id")

    def request_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the request ID that the provider assigned."""
        return headers.get("tiny-ref")

    def turn(self, message: Any) -> Turn:
        """Return one entry of the chat."""
        if not isinstance(message, dict):
            return Turn("other", ())
        role: Literal["user", "assistant"] = "assistant" if message.get("by") == "bot" else "user"
        return Turn(role, tuple(_blocks(message)), message)

    def place(self, keys: Sequence[object]) -> BodyPlace | None:
        """Return the part of a request body to which a path leads: an entry of the chat, or an option."""
        match tuple(keys):
            case ("chat", int(at), "got", *_):
                return BodyPlace("history", at, 0)
            case ("chat", int(at), *_):
                return BodyPlace("history", at)
            case ():
                return None
            case _:
                return BodyPlace("option")

    def is_stream(self, headers: Mapping[str, str]) -> bool:
        """Return whether a response is a stream, which consists of lines of JSON."""
        return headers.get("content-type") == LINES

    def stream_chunks(self, headers: Mapping[str, str], body: bytes) -> list[bytes]:
        """Split a stream into its lines."""
        return body.splitlines(keepends=True) if self.is_stream(headers) else [body]

    def message(self, headers: Mapping[str, str], body: bytes) -> Message:
        """Return the message of a response; a stream is joined first."""
        return self.response(_response_object(body))

    def response(self, value: Mapping[str, Any]) -> Message:
        """Return a response that is already parsed JSON."""
        bot = value.get("bot")
        if not isinstance(bot, dict):
            return Message("other", (), value, error=value.get("oops"))
        return Message(
            role="assistant",
            blocks=tuple(_blocks(bot)),
            raw=bot,
            id=bot.get("ref"),
            model=bot.get("who"),
            stop_reason=value.get("end"),
            usage=value.get("spent"),
        )

    def facts(self, answer: Answer) -> ResponseFacts:
        """Return the facts of a response."""
        message = self.message(answer.headers, answer.body)
        is_complete = answer.ending == "complete" and message.stop_reason is not None
        outcome: AttemptOutcome = "ok" if is_complete else "cut"
        if answer.status is None:
            outcome = "no_response"
        elif answer.status >= 400:
            outcome = "http_error"
        return ResponseFacts(
            is_message=message.role == "assistant",
            id=message.id,
            model=message.model,
            stop_reason=message.stop_reason,
            usage=message.usage,
            calls=[
                ToolCall(str(call.id), call.name, call.value, json_bytes(call.value))
                for call in message.calls
            ],
            block_ids=[str(call.id) for call in message.calls],
            outcome=outcome,
            error_type=message.error,
            certainty="exact" if is_complete else "lower_bound",
        )

    def error_body(self, status: int, message: str, kind: str | None = None) -> bytes:
        """Return the body of an error response."""
        return json.dumps({"oops": kind or message}).encode()

    def response_body(self, draft: Draft) -> bytes:
        """Return a response that is not streamed."""
        return json.dumps(_written_response(draft)).encode()

    def response_stream(self, draft: Draft, deltas: int = 1) -> tuple[str, list[bytes]]:
        """Return a streamed response."""
        return LINES, lines(_written_response(draft))

    def wants_stream(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request requires a streamed response."""
        return bool(body.get("live"))

    def request_message(self, role: Literal["user", "assistant"], blocks: Sequence[Block]) -> Any:
        """Return an entry of the chat."""
        texts = "".join(block.text for block in blocks)
        return {"by": "person" if role == "user" else "bot", "say": texts}

    def request_body(self, model: str, history: Sequence[bytes]) -> bytes:
        """Return a request."""
        return b'{"who":%s,"chat":[%s]}' % (json.dumps(model).encode(), b",".join(history))

    def usage_rows(self, model: str, usage: Mapping[str, Any], certainty: Certainty) -> list[Usage]:
        """Return the only usage row of a response; the provider has no cache."""
        return [
            Usage(
                iteration=0,
                kind="message",
                billed=True,
                model=model,
                input_tokens=usage["in"],
                output_tokens=usage["out"],
                reasoning_tokens=None,
                cache_read_tokens=0,
                cache_write_5m_tokens=0,
                cache_write_1h_tokens=0,
                web_search_requests=0,
                service_tier=None,
                inference_geo=None,
                speed=None,
                certainty=certainty,
            )
        ]

    def usage(
        self, question: Question, answer: Answer, facts: ResponseFacts, model: str | None
    ) -> list[Usage]:
        """Return the usage rows of a chat."""
        if facts.usage is not None:
            return self.usage_rows(facts.model or str(model), facts.usage, facts.certainty)
        return [unreported_usage(str(model))] if answer.status == 200 else []


def lines(response: Mapping[str, Any]) -> list[bytes]:
    """Return a response as the lines of a stream."""
    bot = response["bot"]
    words = bot["say"].split(" ")
    texts = [{"piece": word if at == 0 else f" {word}"} for at, word in enumerate(words)]
    first = {"begin": {key: bot[key] for key in ("ref", "who")}}
    calls = [{"do": call} for call in bot.get("do", [])]
    last = {"end": response["end"], "spent": response["spent"]}
    return [json.dumps(each).encode() + b"\n" for each in (first, *texts, *calls, last)]


def _blocks(entry: Mapping[str, Any]) -> Iterator[Block]:
    if entry.get("by") == "tool":
        text, is_error = text_of(entry.get("got")), bool(entry.get("bad"))
        raw = dict(entry)
        yield Block(
            "result",
            "got",
            entry["ref"],
            text,
            "",
            entry.get("got"),
            is_error,
            raw=raw,
            keys=("got",),
        )
        return
    if entry.get("say"):
        yield Block("text", "say", text=entry["say"], raw={"say": entry["say"]}, keys=("say",))
    for at, call in enumerate(entry.get("do") or []):
        yield Block(
            "call", "do", call["ref"], "", call["fn"], call["with"], raw=call, keys=("do", at)
        )


def _response_object(body: bytes) -> dict[str, Any]:
    """Return a response as one object, even if only a part of it arrived."""
    whole: dict[str, Any] = {}
    for line in body.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            break
        if "begin" in event:
            whole["bot"] = {**event["begin"], "by": "bot", "say": "", "do": []}
        elif "piece" in event:
            whole["bot"]["say"] += event["piece"]
        elif "do" in event:
            whole["bot"]["do"].append(event["do"])
        else:
            whole |= event
    return whole


def _written_response(draft: Draft) -> dict[str, Any]:
    calls = [
        {"ref": block.id, "fn": block.name, "with": block.value}
        for block in draft.blocks
        if block.kind == "call"
    ]
    texts = "".join(block.text for block in draft.blocks)
    bot = {"ref": draft.id, "who": draft.model, "by": "bot", "say": texts, "do": calls}
    spent = {"in": draft.tokens.input, "out": draft.tokens.output}
    return {"bot": bot, "end": "more" if calls else "done", "spent": spent}

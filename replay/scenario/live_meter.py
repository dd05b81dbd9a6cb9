"""The meter of a fork: what its live requests use and cost, and a limit that no request may exceed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentobs import world
from agentobs.errors import UsageError
from agentobs.ledger import Meter
from agentobs.ledger.money import PICODOLLARS, to_usd
from agentobs.ledger.price_book import current_prices
from agentobs.ledger.rates import Context
from agentobs.provider.registry import dialect_of, message_of
from agentobs.recording.session import flush
from agentobs.records.backend import WrittenFact
from agentobs.records.display import exact_money
from agentobs.records.facts import Attempt, UsageRow
from replay.fixture.body_parts import value_of
from replay.fixture.format import Fixture, RecordedRequest

BYTES_PER_TOKEN = 2
"""A request has at most one token for this number of bytes. Text has three to four bytes per token. Our choice."""
OUTPUT_TOKENS = 32_000
"""The assumed limit of the output if a request sets none. Our choice."""
MARGIN = 2
"""The maximum cost of a fork, as a multiple of the cost of the recorded part that it replaces. Our choice."""
FLUSH_SECONDS = 10.0
"""How long to wait for the usage of earlier responses. Our choice."""


@dataclass(frozen=True, slots=True)
class LiveUse:
    """The usage of the live requests of a fork."""

    turns: int = 0
    """The number of live responses to agents."""
    tokens: int = 0
    """Their tokens: input, output and cache."""
    usd: Decimal | None = Decimal(0)
    """Their cost in dollars; None if no price is known."""
    status: str = "exact"
    """The certainty of the cost, see `agentobs.ledger.money.CostStatus`."""

    def as_json(self) -> dict[str, Any]:
        """Return the use as a JSON value; the cost is a string."""
        usd = None if self.usd is None else f"{self.usd.normalize():f}"
        return {"turns": self.turns, "tokens": self.tokens, "usd": usd, "cost_status": self.status}


class LiveMeter:
    """A backend that adds up the live requests of a fork, and refuses those that could exceed a limit."""

    exports_spans = False
    kinds = ("attempt", "usage")

    def __init__(self, usd_max: Decimal | None = None) -> None:
        """Start at zero.

        Args:
            usd_max: the limit in dollars; None for no limit.
        """
        self.usd_max = usd_max
        self.refusal: str | None = None
        """Why the first request was refused."""
        self._meter = Meter()
        self._lock = threading.Lock()
        self._bounds: list[int] = []
        """The maximum cost of each request that was sent, in picodollars."""
        self._turns = 0
        self._ended: set[str] = set()
        """The IDs of the attempts that have ended."""
        self._inexact: set[str] = set()
        """The IDs of the requests whose usage is not exact."""
        self._sessions: dict[str, None] = {}

    def __call__(self, written: WrittenFact) -> None:
        """Receive a fact."""
        fact = written.fact
        if isinstance(fact, UsageRow):
            self._meter.add_facts((fact,))
            # On platforms, the counts are final, and only the prices are estimated.
            if fact.certainty != "exact" and not str(fact.note).startswith("platform:"):
                with self._lock:
                    self._inexact.add(fact.attempt_id)
        elif isinstance(fact, Attempt):
            self._sessions[fact.session_id] = None
            if fact.origin == "live" and fact.makes_turns:
                self._turns += fact.outcome == "ok"
                with self._lock:
                    self._ended.add(fact.attempt_id)

    @property
    def session_ids(self) -> tuple[str, ...]:
        """The IDs of the sessions of the fork, in the order of their first responses."""
        return tuple(self._sessions)

    def admit(self, path: str, body: Mapping[str, Any], size: int) -> None:
        """Count a request that is about to be sent.

        Args:
            path: its path.
            body: its body.
            size: the size of its body, in bytes.

        Raises:
            UsageError: its cost could exceed the limit, or no price is known for its model.
        """
        if self.usd_max is None:
            return
        model = str(body.get("model") or dialect_of(path).model_in(path) or "")
        output = dialect_of(path).output_limit(body) or OUTPUT_TOKENS
        context = Context(model, None, _name(body, "inference_geo"), _name(body, "speed"))
        bound = maximum(context, size // BYTES_PER_TOKEN, output)
        flush(FLUSH_SECONDS)
        with self._lock:
            if bound is None:
                raise self._refused(f"no price is known for the model {model}")
            spent = self._meter.total()
            # A response that was cut off, or that no client waited for, may cost more than its known usage.
            settled = len(self._ended - self._inexact)
            open_count = max(len(self._bounds) - settled, 0)
            pending = sum(sorted(self._bounds)[len(self._bounds) - open_count :])
            used = sum(spent.picodollars.values()) + pending
            if used + bound > int(self.usd_max * PICODOLLARS):
                shown = exact_money(to_usd(used))
                raise self._refused(
                    f"the limit of {exact_money(self.usd_max)} does not allow another request: {shown} is spent or "
                    f"reserved, and the request could cost {exact_money(to_usd(bound))}"
                )
            self._bounds.append(bound)

    def _refused(self, why: str) -> UsageError:
        self.refusal = self.refusal or why
        return UsageError(why, where="--max-usd", todo="Nothing more was sent. Raise the limit")

    def use(self) -> LiveUse:
        """Return what was used so far."""
        flush(FLUSH_SECONDS)
        total = self._meter.total()
        tokens = sum(count for part, count in total.tokens.items() if part != "server_tools")
        return LiveUse(self._turns, tokens, total.usd, total.status)


def _name(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) else None


def maximum(context: Context, prompt_tokens: int, output_tokens: int) -> int | None:
    """Return the highest cost of a request, in picodollars: its prompt at the highest price of any part of a prompt.

    Returns None if the model has no price.
    """
    unit = current_prices().at(context, world.now(), prompt_tokens)
    if unit.picodollars_each is None:
        return None
    each_input, each_output, _, write_5m, write_1h, _ = unit.picodollars_each
    return prompt_tokens * max(each_input, write_5m, write_1h) + output_tokens * each_output


def fork_maximum(fixture: Fixture, turn: int, model: str | None) -> Decimal | None:
    """Return how much a fork may cost at most, in dollars; None if a model has no price.

    This is `MARGIN` times the recorded part after the turn, without savings by the cache, and the highest possible cost
    of one request; at the prices of the model. A meter with this limit stops a fork that would cost more.

    Args:
        fixture: the replayed fixture.
        turn: the turn with the last recorded response.
        model: the model of the live requests; None for the recorded ones.
    """
    later = _requests_after(fixture, turn)
    total = largest = 0
    for each in later:
        message = message_of(each.path, each.answer)
        size = len(fixture.body(each.number))
        body = _body(fixture, each)
        name = model or message.model or ""
        rows = dialect_of(each.path).usage_rows(name, message.usage or {}, "exact")
        context = Context(name, None, *(_name(body, key) for key in ("inference_geo", "speed")))
        costs = [maximum(context, row.prompt_tokens, row.output_tokens) for row in rows]
        bound = maximum(context, size // BYTES_PER_TOKEN, _output_limit(each, body))
        if bound is None or None in costs:
            return None
        total += sum(cost or 0 for cost in costs)
        largest = max(largest, bound)
    return to_usd(MARGIN * total + largest)


def recorded_use(fixture: Fixture, turn: int) -> LiveUse:
    """Return what the recorded requests after a turn have used."""
    meter, turns = Meter(), 0
    for each in _requests_after(fixture, turn):
        message = message_of(each.path, each.answer)
        # Requests of sub-agents have no turn in fixtures, but the live ones are counted as well.
        turns += message.usage is not None
        rows = dialect_of(each.path).usage_rows(message.model or "", message.usage or {}, "exact")
        meter.add_rows((row, world.now()) for row in rows)
    total = meter.total()
    tokens = sum(count for part, count in total.tokens.items() if part != "server_tools")
    return LiveUse(turns, tokens, total.usd, total.status)


def _requests_after(fixture: Fixture, turn: int) -> list[RecordedRequest]:
    """Return the answered requests after a turn of the main lane, in the order of the fixture."""
    main = [each for each in fixture.requests if (each.lane, each.turn) == ("main", turn)]
    last = max((each.number for each in main), default=0)
    return [
        each
        for each in fixture.requests
        if each.number > last
        and each.answer.status == 200
        and dialect_of(each.path).makes_turns(each.path)
    ]


def _body(fixture: Fixture, request: RecordedRequest) -> Mapping[str, Any]:
    body = value_of(fixture.body(request.number))
    return body if isinstance(body, dict) else {}


def _output_limit(request: RecordedRequest, body: Mapping[str, Any]) -> int:
    return dialect_of(request.path).output_limit(body) or OUTPUT_TOKENS


__all__ = ["LiveMeter", "LiveUse", "fork_maximum", "maximum", "recorded_use"]

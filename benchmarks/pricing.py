"""What money costs: the ledger beside a call, and a million stored calls priced in one command."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import duckdb
import genai_prices

from agentobs.ledger import Meter, book_of, warm
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.duckdb import generations, price_tables
from agentobs.store.duckdb.schema import migrate
from benchmarks.measure import Cost, Part, Round, compare, cost_of, milliseconds, ratio
from benchmarks.report import Section, Verdict
from benchmarks.starting import script, start

CALLS = 400
"""Calls of one round."""
ROUNDS = 15
STORED = 1_000_000
"""Calls in the store."""
NOTHING, AGAIN = "nothing", "again"
UNMETERED, METERED, READ = "recorded", "recorded and metered", "metered, and read after each call"
MODELS = ("claude-opus-5-5", "claude-sonnet-5", "claude-haiku-5-5", "claude-sonnet-4-5-20250929")
BODY = (
    b'{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-5-5","content":[],'
    b'"stop_reason":"end_turn","usage":{"input_tokens":1000,"cache_read_input_tokens":50000,"output_tokens":400,'
    b'"cache_creation_input_tokens":700,"cache_creation":{"ephemeral_5m_input_tokens":700,'
    b'"ephemeral_1h_input_tokens":0},"service_tier":"standard"}}'
)
USAGE = {
    "input_tokens": 1000,
    "cache_read_input_tokens": 50_000,
    "cache_creation_input_tokens": 700,
    "output_tokens": 400,
    "service_tier": "standard",
}
AT_NS = 1_795_000_000_000_000_000
"""When the calls are sent: 2026-11-18."""


def sections() -> Iterator[Section]:
    """Measure everything about money."""
    warm()
    yield _beside_a_call()
    yield _in_the_loop()
    yield _stored()


def _beside_a_call() -> Section:
    """Compare handing exchanges to a recorder that adds up no costs, one that does, and one that is read."""
    with tempfile.TemporaryDirectory() as home:
        recorders = {who: Recorder(open_home(Path(home) / str(number)))
                     for number, who in enumerate((UNMETERED, AGAIN, METERED, READ))}  # fmt: skip
        meters = {who: recorders[who].meter(who) for who in (METERED, READ)}
        variants: dict[str, Callable[[int], Cost]] = {
            who: partial(_hand_in, recorder, who, None) for who, recorder in recorders.items()
        }
        variants[READ] = partial(_hand_in, recorders[READ], READ, meters[READ])
        for each in variants.values():
            each(0)
        measured = compare(variants, range(1, ROUNDS + 1))
        for recorder in recorders.values():
            recorder.close()
        assert meters[METERED].total().calls == CALLS * (ROUNDS + 1), "calls were not counted"
    return Section(
        "The ledger beside a call",
        f"{ROUNDS} rounds of {CALLS} exchanges each, handed to a recorder one by one as the transport does, until the "
        "last is in the journal. The recorder's thread adds each up; the caller's has nothing to do with it. "
        "Microseconds a call, the medians of the rounds; reading prices what was added, in the thread that reads.",
        ("", "CPU, caller's thread", "CPU, process"),
        tuple(
            (who, *(f"{_each(measured, who, part):.1f}" for part in ("thread_ns", "process_ns")))
            for who in (UNMETERED, AGAIN, METERED, READ)
        ),
        (
            Verdict(
                "what adding up its cost adds to a call on the caller's thread",
                2.0,
                _each(measured, METERED, "thread_ns") - _each(measured, UNMETERED, "thread_ns"),
                form="{:.1f} us",
            ),
        ),
    )


def _each(measured: list[Round], who: str, part: Part) -> float:
    return milliseconds(measured, who, part) * 1000 / CALLS


def _hand_in(recorder: Recorder, who: str, meter: Meter | None, number: int) -> Cost:
    exchanges = [_exchange(who, number * CALLS + each) for each in range(CALLS)]

    def work() -> None:
        for exchange in exchanges:
            recorder(exchange)
            if meter is not None:
                meter.total()

    return cost_of(work, partial(recorder.flush, 60.0))


def _exchange(who: str, number: int) -> ModelExchange:
    question = Question("POST", "/v1/messages", {}, b'{"model":"claude-opus-5-5","messages":[]}')
    answer = Answer(200, {"content-type": "application/json"}, (Chunk(BODY, 1),), "complete")
    return ModelExchange(Place(who, who), f"{number:032x}", AT_NS, 1, 2, question, answer)


def _in_the_loop() -> Section:
    """Compare what a loop does that adds up by itself with doing nothing."""
    meter, read = Meter(), Meter()

    def nothing(usage: object) -> None:
        pass

    def add(usage: dict[str, object]) -> None:
        meter.add("claude-opus-5-5", usage, AT_NS)

    def add_and_read(usage: dict[str, object]) -> None:
        read.add("claude-opus-5-5", usage, AT_NS)
        read.total()

    def peer(_: dict[str, object]) -> None:
        counts = genai_prices.Usage(
            input_tokens=51_700, cache_read_tokens=50_000, cache_write_tokens=700, output_tokens=400
        )
        genai_prices.calc_price(counts, "claude-opus-5-5", provider_id="anthropic")

    def repeat(how: Callable[[dict[str, object]], None], _: int) -> Cost:
        def work() -> None:
            for _ in range(CALLS):
                how(dict(USAGE))

        return cost_of(work)

    hows = {
        NOTHING: nothing,
        AGAIN: nothing,
        "`Meter.add`": add,
        "`Meter.add`, then `total()`": add_and_read,
        "genai-prices' `calc_price`": peer,
    }
    variants = {name: partial(repeat, how) for name, how in hows.items()}
    for each in variants.values():
        each(0)
    measured = compare(variants, range(ROUNDS))
    base = milliseconds(measured, NOTHING, "thread_ns")
    added = {
        name: (milliseconds(measured, name, "thread_ns") - base) * 1000 / CALLS for name in hows
    }
    return Section(
        "Adding up in the loop",
        f"{ROUNDS} rounds of {CALLS} calls each, CPU of the caller's thread beyond a function that does nothing. "
        "Added calls are priced when somebody reads, or when many wait.",
        ("", "us a call"),
        tuple((name, f"{value:+.2f}") for name, value in added.items()),
        (
            Verdict(
                "one call added and read, over genai-prices' `calc_price`",
                1.0,
                added["`Meter.add`, then `total()`"] / added["genai-prices' `calc_price`"],
                why="A reading builds the sums by model anew.",
            ),
        ),
    )


def _stored() -> Section:
    """Price a million stored calls, by commands in processes of their own."""
    with tempfile.TemporaryDirectory() as path:
        home = open_home(Path(path) / "home")
        _fill(home)
        commands = {
            "sums of tokens, hand-written SQL": ["sql", _TOKENS],
            AGAIN: ["sql", _TOKENS],
            "`agentobs cost`": ["cost"],
            "`agentobs reprice`": ["reprice"],
            "`agentobs reprice --model claude-opus-5`": ["reprice", "--model", "claude-opus-5"],
        }
        floor = next(iter(commands))
        asked = [script(), "--home", str(home.path)]
        variants = {name: partial(start, [*asked, *rest]) for name, rest in commands.items()}
        measured = compare(variants, range(5))
    return Section(
        f"{STORED:,} stored calls priced",
        "5 rounds of one process each, start-up included, over a published store. The floor sums the tokens by model "
        f"with hand-written SQL in the same command line; it takes {milliseconds(measured, floor, 'wall_ns'):.0f} ms.",
        ("", "wall", "wall, ms", "CPU, ms"),
        tuple(
            (
                name,
                f"{ratio(measured, name, floor, 'wall_ns'):.2f}",
                f"{milliseconds(measured, name, 'wall_ns'):.0f}",
                f"{milliseconds(measured, name, 'process_ns'):.0f}",
            )
            for name in commands
        ),
    )


_TOKENS = """
SELECT model, sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_5m_tokens),
    sum(cache_write_1h_tokens) FROM usage GROUP BY model
"""


def _fill(home: Home) -> None:
    """Publish a store of so many calls, of sessions of a hundred, priced as an ingest does it."""
    path = generations.draft(home, copy=False)
    with duckdb.connect(str(path)) as connection:
        migrate(connection)
        connection.execute(
            """
            INSERT INTO usage BY NAME
            SELECT 'segment' AS segment_id, i AS sequence, printf('%032x', i // 100) AS session_id,
                printf('%032x', i) AS attempt_id, $at + i * 1000000 AS at_ns, 0 AS iteration, 'message' AS kind,
                true AS billed, $models[1 + i % 4] AS model, i * 7 % 3000 AS input_tokens,
                i * 13 % 900 AS output_tokens, i * 17 % 120000 AS cache_read_tokens,
                i * 19 % 4000 AS cache_write_5m_tokens, i * 23 % 50 AS cache_write_1h_tokens,
                0 AS web_search_requests, 'standard' AS service_tier, 'exact' AS certainty,
                0 AS web_fetch_requests, 0 AS code_execution_requests
            FROM range($stored) AS calls(i)
            """,
            {"at": AT_NS, "models": list(MODELS), "stored": STORED},
        )
        connection.execute(
            """
            INSERT INTO attempts BY NAME
            SELECT segment_id, sequence, session_id, attempt_id, attempt_id AS llm_request_id, 'main' AS lane,
                1 AS attempt, at_ns AS started_ns, 1000000 AS duration_ns, '/v1/messages' AS endpoint,
                model, 'ok' AS outcome, 'main' AS query_source, sequence % 100 + 1 AS turn
            FROM usage
            """
        )
        contexts = price_tables.new_contexts(connection, "usage", "prices", ["segment"])
        price_tables.add(connection, contexts, book_of(home.path))
        connection.execute("CHECKPOINT")
    generations.publish(home, path, 0, None)

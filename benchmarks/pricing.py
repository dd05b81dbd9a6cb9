"""The cost of calculating costs: metering of calls, and pricing of a million stored calls."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import duckdb
import genai_prices

from agentobs.ledger import Meter, book_of, load_prices
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.duckdb import generations, price_tables
from agentobs.store.duckdb.schema import migrate
from benchmarks.measure import Cost, Part, Round, compare, cost_of, milliseconds, ratio
from benchmarks.report import Section, Verdict
from benchmarks.startup import script, start

CALLS = 400
"""The number of calls in one round."""
ROUNDS = 15
STORED = 1_000_000
"""The number of calls in the store."""
NOTHING, REPEATED = "an empty function", "floor, repeated"
UNMETERED, METERED, READ = "recorded", "recorded and metered", "metered, read after each call"
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
"""The time of the calls: 2026-11-18."""


def sections() -> Iterator[Section]:
    """Measure the cost of metering and pricing."""
    load_prices()
    yield _metering()
    yield _meter_alone()
    yield _stored_calls()


def _metering() -> Section:
    """Compare recorders without a meter, with a meter, and with a meter that is read after each call."""
    with tempfile.TemporaryDirectory() as home:
        recorders = {variant: Recorder(open_home(Path(home) / str(number)))
                     for number, variant in enumerate((UNMETERED, REPEATED, METERED, READ))}  # fmt: skip
        meters = {variant: recorders[variant].meter(variant) for variant in (METERED, READ)}
        variants: dict[str, Callable[[int], Cost]] = {
            variant: partial(_record, recorder, variant, None)
            for variant, recorder in recorders.items()
        }
        variants[READ] = partial(_record, recorders[READ], READ, meters[READ])
        for each in variants.values():
            each(0)
        measured = compare(variants, range(1, ROUNDS + 1))
        for recorder in recorders.values():
            recorder.close()
        assert meters[METERED].total().calls == CALLS * (ROUNDS + 1), "calls were not counted"
    return Section(
        "Metering of recorded calls",
        f"{ROUNDS} rounds of {CALLS} exchanges each, which are passed to a recorder one by one, until the last one "
        "is in the journal. The recorder's thread adds up the usage. When a meter is read, the reading thread "
        "calculates the costs. Microseconds per call, medians of the rounds.",
        ("", "CPU, caller's thread", "CPU, process"),
        tuple(
            (
                variant,
                *(
                    f"{_microseconds(measured, variant, part):.1f}"
                    for part in ("thread_ns", "process_ns")
                ),
            )
            for variant in (UNMETERED, REPEATED, METERED, READ)
        ),
        (
            Verdict(
                "added cost of metering per call, CPU of the caller's thread",
                2.0,
                _microseconds(measured, METERED, "thread_ns")
                - _microseconds(measured, UNMETERED, "thread_ns"),
                form="{:.1f} us",
            ),
        ),
    )


def _microseconds(measured: list[Round], variant: str, part: Part) -> float:
    return milliseconds(measured, variant, part) * 1000 / CALLS


def _record(recorder: Recorder, variant: str, meter: Meter | None, number: int) -> Cost:
    exchanges = [_exchange(variant, number * CALLS + each) for each in range(CALLS)]

    def work() -> None:
        for exchange in exchanges:
            recorder(exchange)
            if meter is not None:
                meter.total()

    return cost_of(work, partial(recorder.flush, 60.0))


def _exchange(variant: str, number: int) -> ModelExchange:
    question = Question("POST", "/v1/messages", {}, b'{"model":"claude-opus-5-5","messages":[]}')
    answer = Answer(200, {"content-type": "application/json"}, (Chunk(BODY, 1),), "complete")
    return ModelExchange(Place(variant, variant), f"{number:032x}", AT_NS, 1, 2, question, answer)


def _meter_alone() -> Section:
    """Compare the calls of a meter with an empty function."""
    meter, read = Meter(), Meter()

    def nothing(usage: object) -> None:
        pass

    def add(usage: dict[str, object]) -> None:
        meter.add("claude-opus-5-5", usage, AT_NS)

    def add_and_read(usage: dict[str, object]) -> None:
        read.add("claude-opus-5-5", usage, AT_NS)
        read.total()

    def calc_price(_: dict[str, object]) -> None:
        counts = genai_prices.Usage(
            input_tokens=51_700, cache_read_tokens=50_000, cache_write_tokens=700, output_tokens=400
        )
        genai_prices.calc_price(counts, "claude-opus-5-5", provider_id="anthropic")

    def repeat(function: Callable[[dict[str, object]], None], _: int) -> Cost:
        def work() -> None:
            for _ in range(CALLS):
                function(dict(USAGE))

        return cost_of(work)

    functions = {
        NOTHING: nothing,
        REPEATED: nothing,
        "`Meter.add`": add,
        "`Meter.add`, then `total()`": add_and_read,
        "genai-prices' `calc_price`": calc_price,
    }
    variants = {name: partial(repeat, function) for name, function in functions.items()}
    for each in variants.values():
        each(0)
    measured = compare(variants, range(ROUNDS))
    base = milliseconds(measured, NOTHING, "thread_ns")
    added = {
        name: (milliseconds(measured, name, "thread_ns") - base) * 1000 / CALLS
        for name in functions
    }
    return Section(
        "Metering without a recorder",
        f"{ROUNDS} rounds of {CALLS} calls each, CPU of the caller's thread in addition to an empty function. A meter "
        "calculates costs when it is read, or when it has many calls without a cost.",
        ("", "us per call"),
        tuple((name, f"{value:+.2f}") for name, value in added.items()),
        (
            Verdict(
                "`Meter.add` and `total()`, divided by genai-prices' `calc_price`",
                1.0,
                added["`Meter.add`, then `total()`"] / added["genai-prices' `calc_price`"],
                why="Each read calculates the sums by model again.",
            ),
        ),
    )


def _stored_calls() -> Section:
    """Measure commands that price all stored calls, each in a separate process."""
    with tempfile.TemporaryDirectory() as path:
        home = open_home(Path(path) / "home")
        _fill(home)
        commands = {
            "sums of tokens, hand-written SQL": ["sql", _TOKENS],
            REPEATED: ["sql", _TOKENS],
            "`agentobs cost`": ["cost"],
            "`agentobs reprice`": ["reprice"],
            "`agentobs reprice --model claude-opus-5`": ["reprice", "--model", "claude-opus-5"],
        }
        floor = next(iter(commands))
        command = [script(), "--home", str(home.path)]
        variants = {
            name: partial(start, [*command, *arguments]) for name, arguments in commands.items()
        }
        measured = compare(variants, range(5))
    return Section(
        f"Pricing of {STORED:,} stored calls",
        "5 rounds of one process each, including its start-up, with an ingested store. The floor adds up the tokens by "
        f"model with hand-written SQL in `agentobs sql`; it takes {milliseconds(measured, floor, 'wall_ns'):.0f} ms.",
        ("", "wall, x floor", "wall, ms", "CPU, ms"),
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
    """Publish a store with `STORED` calls in sessions of 100 calls, with prices as after an ingest."""
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

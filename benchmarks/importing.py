"""What importing costs: other programs' logs and recordings, against DuckDB's own reader of the same JSON lines."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import duckdb

from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.importers.wire_files import files_in, import_wire
from agentobs.recording.journal.home import Home, open_home
from agentobs.store.duckdb.ingest import ingest
from benchmarks.measure import Cost, compare, cost_of, ratio
from benchmarks.report import Section

ROUNDS = 5
ENVIRONMENT = {"transcripts": "AGENTOBS_TRANSCRIPTS", "wire": "AGENTOBS_WIRE"}
"""Name the folders of logs and of recordings; default: `../shared/transcripts` and `../shared/wire`."""

Work = Callable[[Path], object]


def sections() -> Iterator[Section]:
    """Measure an import of logs, and one of recorded exchanges; nothing where their files are not there."""
    if (logs := _folder("transcripts")) is not None:
        files = logs_in([logs])

        def claude(home: Home) -> None:
            import_logs(home, files, take_out=_never)

        yield _section("Session logs of Claude Code", files, claude)
    if (recordings := _folder("wire")) is not None:
        # Those of responses alone are no exchanges.
        files = [each for each in files_in([recordings]) if "response_only" not in each.parts]

        def wire(home: Home) -> None:
            import_wire(home, files)

        yield _section("Recorded exchanges", files, wire)


def _folder(name: str) -> Path | None:
    told = os.environ.get(ENVIRONMENT[name])
    place = Path(told) if told else Path(__file__).parents[2] / "shared" / name
    return place if place.is_dir() else None


def _never(home: Home, session_id: str) -> None:
    raise AssertionError(f"{session_id} of {home} was imported into a new home")


def _section(title: str, files: list[Path], bring_in: Callable[[Home], None]) -> Section:
    size = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        together = place / "together.jsonl"
        with together.open("wb") as out:
            for path in files:
                data = path.read_bytes()
                out.write(data if data.endswith(b"\n") else data + b"\n")
        known = _imported(place / "known", bring_in)
        segments = sum(each.stat().st_size for each in known.segments.iterdir())
        variants: dict[str, Work] = {
            "DuckDB's read_json into a table": lambda at: _duckdbs(at, together),
            "Python's json.loads of each line": lambda at: _parsed(together),
            "agentobs import": lambda at: _imported(at, bring_in),
            "agentobs import, once more": lambda _: bring_in(known),
            "agentobs ingest of what was imported": lambda at: _ingested(at, known),
        }
        rounds = compare(
            {name: _costed(work) for name, work in variants.items()},
            [place / str(number) for number in range(ROUNDS)],
        )
    floor = "DuckDB's read_json into a table"
    rows = []
    for name in variants:
        seconds = median(each[name].process_ns for each in rounds) / 1e9
        share = ratio(rounds, name, floor, "process_ns")
        rows.append((name, f"{size / 1e6 / seconds:.1f}", f"{share:.1f}"))
    return Section(
        f"{title}, imported",
        f"{ROUNDS} rounds; {len(files)} files, {size / 1e6:.1f} MB, which become {segments / 1e6:.1f} MB of segments; "
        "CPU of the process, MB of the files a second. DuckDB reads all lines from one file into one table of JSON, on "
        "one thread. An import rebuilds the conversations, takes secrets out, makes facts of them, and syncs a segment "
        "for each session.",
        ("", "MB/s", "x DuckDB"),
        tuple(rows),
    )


def _costed(work: Work) -> Callable[[Path], Cost]:
    def measured(at: Path) -> Cost:
        shutil.rmtree(at, ignore_errors=True)
        return cost_of(lambda: work(at))

    return measured


def _imported(at: Path, bring_in: Callable[[Home], None]) -> Home:
    home = open_home(at)
    bring_in(home)
    return home


def _ingested(at: Path, known: Home) -> None:
    shutil.copytree(known.path, at)
    ingest(Home(at), is_awaited=True)


def _duckdbs(at: Path, together: Path) -> None:
    at.mkdir()
    with duckdb.connect(str(at / "theirs.duckdb"), config={"threads": 1}) as connection:
        source = (
            f"read_json('{together}', format = 'newline_delimited', maximum_object_size = 67108864)"
        )
        connection.execute(f"CREATE TABLE lines AS FROM {source}")
        connection.execute("CHECKPOINT")


def _parsed(together: Path) -> int:
    with together.open("rb") as file:
        return sum(len(json.loads(line)) for line in file)

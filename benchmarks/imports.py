"""The cost of importing logs and recordings of other programs, compared with DuckDB's reader of the same JSON lines."""

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
"""The variables with the folders of logs and recordings.

The defaults are `../shared/transcripts` and `../shared/wire`.
"""

Work = Callable[[Path], object]


def sections() -> Iterator[Section]:
    """Measure an import of logs, and an import of recorded exchanges, if the files exist."""
    if (logs := _folder("transcripts")) is not None:
        files = logs_in([logs])

        def claude(home: Home) -> None:
            import_logs(home, files, remove_session=_fail_if_called)

        yield _section("Session logs of Claude Code", files, claude)
    if (recordings := _folder("wire")) is not None:
        # Files that contain only responses are not exchanges.
        files = [each for each in files_in([recordings]) if "response_only" not in each.parts]

        def wire(home: Home) -> None:
            import_wire(home, files)

        yield _section("Recorded exchanges", files, wire)


def _folder(name: str) -> Path | None:
    configured = os.environ.get(ENVIRONMENT[name])
    path = Path(configured) if configured else Path(__file__).parents[2] / "shared" / name
    return path if path.is_dir() else None


def _fail_if_called(home: Home, session_id: str) -> None:
    raise AssertionError(f"{session_id} of {home} was imported into a new home")


def _section(title: str, files: list[Path], import_files: Callable[[Home], None]) -> Section:
    size = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        combined = root / "combined.jsonl"
        with combined.open("wb") as out:
            for path in files:
                data = path.read_bytes()
                out.write(data if data.endswith(b"\n") else data + b"\n")
        imported = _import(root / "imported", import_files)
        segments = sum(each.stat().st_size for each in imported.segments.iterdir())
        variants: dict[str, Work] = {
            "DuckDB's read_json into a table": lambda at: _read_with_duckdb(at, combined),
            "Python's json.loads of each line": lambda at: _parse_lines(combined),
            "agentobs import": lambda at: _import(at, import_files),
            "agentobs import, repeated": lambda _: import_files(imported),
            "agentobs ingest of the imported sessions": lambda at: _ingest(at, imported),
        }
        rounds = compare(
            {name: _measured(work) for name, work in variants.items()},
            [root / str(number) for number in range(ROUNDS)],
        )
    floor = "DuckDB's read_json into a table"
    rows = []
    for name in variants:
        seconds = median(each[name].process_ns for each in rounds) / 1e9
        share = ratio(rounds, name, floor, "process_ns")
        rows.append((name, f"{size / 1e6 / seconds:.1f}", f"{share:.1f}"))
    return Section(
        f"{title}, imported",
        f"{ROUNDS} rounds of {len(files)} files with {size / 1e6:.1f} MB, which become {segments / 1e6:.1f} MB of "
        "segments. MB of these files per second of CPU time of the process. DuckDB reads all lines from one file "
        "into one JSON table, on one thread. An import rebuilds the conversations, redacts secrets, derives facts, "
        "and syncs one segment per session.",
        ("", "MB/s", "x DuckDB"),
        tuple(rows),
    )


def _measured(work: Work) -> Callable[[Path], Cost]:
    def measured(at: Path) -> Cost:
        shutil.rmtree(at, ignore_errors=True)
        return cost_of(lambda: work(at))

    return measured


def _import(at: Path, import_files: Callable[[Home], None]) -> Home:
    home = open_home(at)
    import_files(home)
    return home


def _ingest(at: Path, imported: Home) -> None:
    shutil.copytree(imported.path, at)
    ingest(Home(at), is_awaited=True)


def _read_with_duckdb(at: Path, combined: Path) -> None:
    at.mkdir()
    with duckdb.connect(str(at / "floor.duckdb"), config={"threads": 1}) as connection:
        source = (
            f"read_json('{combined}', format = 'newline_delimited', maximum_object_size = 67108864)"
        )
        connection.execute(f"CREATE TABLE lines AS FROM {source}")
        connection.execute("CHECKPOINT")


def _parse_lines(combined: Path) -> int:
    with combined.open("rb") as file:
        return sum(len(json.loads(line)) for line in file)

"""`python -m benchmarks [NAME ...]` runs benchmarks and prints their results; a run of all also writes RESULTS.md."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    agent_loop,
    clients,
    dashboards,
    durability,
    effects,
    events,
    export,
    freeze,
    imports,
    ingest,
    loop_lag,
    pages,
    pricing,
    proxy,
    queries,
    recorder,
    redaction,
    replayer,
    report,
    spans,
    startup,
    workspaces,
)

BENCHMARKS: dict[str, Callable[[], Iterator[report.Section]]] = {
    "recording": recorder.sections,
    "clients": clients.sections,
    "durability": durability.sections,
    "proxy": proxy.sections,
    "effects": effects.sections,
    "ingest": ingest.sections,
    "importing": imports.sections,
    "loop": agent_loop.sections,
    "lag": loop_lag.sections,
    "replay": replayer.sections,
    "start-up": startup.sections,
    "freeze": freeze.sections,
    "queries": queries.sections,
    "pricing": pricing.sections,
    "redaction": redaction.sections,
    "events": events.sections,
    "spans": spans.sections,
    "exporting": export.sections,
    "dashboards": dashboards.sections,
    "pages": pages.sections,
    "workspaces": workspaces.sections,
}


def main() -> None:
    """Run the named benchmarks, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--verdicts", type=Path, help="also write the targets as JSON to this file")
    options = parser.parse_args()
    names: list[str] = options.names
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; expected one of {', '.join(BENCHMARKS)}"
        )
    results: list[report.Section] = []
    for name in names or BENCHMARKS:
        for section in BENCHMARKS[name]():
            print(section.text(), flush=True, end="\n\n")
            results.append(section)
    print(report.targets(results))
    if options.verdicts:
        report.write_verdicts(results, options.verdicts)
    if not names:
        report.write(results)
        print(f"\nWritten to {report.RESULTS}")


if __name__ == "__main__":  # child processes of benchmarks also import this module
    main()

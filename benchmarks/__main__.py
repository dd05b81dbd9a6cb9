"""`python -m benchmarks [NAME ...]`: measure, print, and write RESULTS.md when everything was measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from benchmarks import (
    dashboards,
    durability,
    events,
    exporting,
    importing,
    ingesting,
    looping,
    pricing,
    querying,
    recording,
    redacting,
    replaying,
    report,
    spans,
    starting,
    trial,
)

BENCHMARKS: dict[str, Callable[[], Iterator[report.Section]]] = {
    "recording": recording.sections,
    "durability": durability.sections,
    "ingest": ingesting.sections,
    "importing": importing.sections,
    "loop": looping.sections,
    "replay": replaying.sections,
    "start-up": starting.sections,
    "freeze": trial.sections,
    "queries": querying.sections,
    "pricing": pricing.sections,
    "redaction": redacting.sections,
    "events": events.sections,
    "spans": spans.sections,
    "exporting": exporting.sections,
    "dashboards": dashboards.sections,
}


def main() -> None:
    """Run the benchmarks that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    names: list[str] = parser.parse_args().names
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    done: list[report.Section] = []
    for name in names or BENCHMARKS:
        for section in BENCHMARKS[name]():
            print(section.text(), flush=True, end="\n\n")
            done.append(section)
    print(report.targets(done))
    if not names:
        report.write(done)
        print(f"\nWritten to {report.RESULTS}")


if __name__ == "__main__":  # the children that measure in a process of their own import this, too
    main()

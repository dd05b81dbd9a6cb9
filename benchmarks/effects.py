"""The cost of observed commands and MCP calls: with and without, alternating in each round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from agentobs.effects.commands.shim_files import write_shims
from agentobs.effects.commands.shim_reports import ShimReports
from agentobs.effects.mcp import stdio_tee
from agentobs.effects.report_socket import ReportSocket
from benchmarks.report import Section, Verdict

ROUNDS = 300
COMMAND = ["sh", "-c", ":"]
COMMAND_MS = 5.0
"""The maximum added time of a command, in milliseconds."""
COPIED_BYTES = 100 * 1024 * 1024
CALLS = 500
CALL_MS = 0.5
"""The maximum added time of an MCP call, in milliseconds. Our choice: a tenth of a call of a local server."""
_SERVER = (
    "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line.replace('method', 'result'))\n"
    "    sys.stdout.flush()\n"
)


def sections() -> Iterator[Section]:
    """Measure commands through the shim, and calls of a server through the tee."""
    environment = dict(os.environ)
    files = write_shims(environment)
    observed = dict(environment)
    files.put_into(observed)
    reports = ShimReports(files.socket, lambda _: None)
    try:
        variants = {"without": environment, "with the shim": observed}
        times: dict[str, list[float]] = {name: [] for name in variants}
        copies: dict[str, list[float]] = {name: [] for name in variants}
        for at in range(ROUNDS):
            for name, each in variants.items():
                times[name].append(_run(COMMAND, each))
                if at % 60 == 0:
                    copy = ["sh", "-c", f"head -c {COPIED_BYTES} /dev/zero"]
                    copies[name].append(_run(copy, each))
    finally:
        reports.stop()
        files.remove()
    calls = _calls()
    added = median(b - a for a, b in zip(*times.values(), strict=True))
    added_call = median(b - a for a, b in zip(*calls.values(), strict=True))
    yield Section(
        "Observed effects",
        f"`{' '.join(COMMAND)}` with captured streams, {ROUNDS} rounds; {COPIED_BYTES >> 20} MB of output through a "
        f"pipe; {CALLS} calls of an MCP server over standard input and output. Median.",
        ("", "command", "100 MB of output", "MCP call"),
        tuple(
            (name, f"{median(times[name]):.2f} ms", f"{median(copies[name]):.0f} ms", f"{median(each) * 1e3:.0f} us")
            for name, each in zip(variants, calls.values(), strict=True)
        ),
        (
            Verdict("a command through the shim", COMMAND_MS, added, "{:.2f} ms", _SLOW),
            Verdict("an MCP call through the tee", CALL_MS, added_call, "{:.3f} ms", _SLOW),
        ),
    )  # fmt: skip


def _run(command: list[str], environment: dict[str, str]) -> float:
    """Run a command with captured streams; return its time in milliseconds."""
    started = time.perf_counter_ns()
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)  # fmt: skip
    return (time.perf_counter_ns() - started) / 1e6


class _Ignored:
    def message(self, kind: bytes, fields: list[bytes]) -> None:
        """Ignore a message."""

    def closed(self, *, by_sender: bool) -> None:
        """Ignore the end."""


def _calls() -> dict[str, list[float]]:
    """Return the times of calls without and with the tee, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "socket")
        reports = ReportSocket(path, _Ignored, "benchmark")
        server = [sys.executable, "-S", "-c", _SERVER]
        tee = [
            sys.executable,
            "-m",
            stdio_tee.__name__,
            "--socket",
            str(path),
            "--server",
            "x",
            "--",
            *server,
        ]
        opened = {
            name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for name, command in (("without", server), ("with", tee))
        }
        times: dict[str, list[float]] = {name: [] for name in opened}
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * 1000}).encode() + b"\n"
        for at in range(CALLS + 1):
            for name, process in opened.items():
                assert process.stdin is not None
                assert process.stdout is not None
                started = time.perf_counter_ns()
                process.stdin.write(line)
                process.stdin.flush()
                process.stdout.readline()
                if at:  # the first call waits for the start of the process
                    times[name].append((time.perf_counter_ns() - started) / 1e6)
        for process in opened.values():
            process.communicate()
        reports.stop()
        return times


_SLOW = "The machine runs other programs."

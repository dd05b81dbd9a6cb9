"""An optional check with an independent product: Phoenix reads our spans (`make test-phoenix`).

The variable PHOENIX contains the path of its program, which takes 440 MB and is not installed with the tests. If the
variable is not set, this module contains no tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentobs.store.duckdb.connection import connect
from tests.exporters.sample_session import PRICED, sample_home
from tests.exporters.test_backfill import send
from tests.exporters.test_rotel import free_port, wait_for
from tests.exporters.test_semconv import STORED

PROGRAM = os.environ.get("PHOENIX")


@contextlib.contextmanager
def phoenix(folder: Path) -> Iterator[str]:
    """Run Phoenix with a separate store; yield its address."""
    assert PROGRAM is not None
    port, grpc = free_port(), free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    with (
        (folder / "phoenix.out").open("wb+") as out,
        subprocess.Popen([PROGRAM, "serve"], env=environment, stdout=out, stderr=out) as process,
    ):
        try:
            # Phoenix takes half a minute to start on an idle machine.
            wait_for(port, SimpleNamespace(poll=process.poll, stdout=out), looks=4_000)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


if PROGRAM is not None:

    @pytest.mark.timeout(300)
    def test_phoenix_reads_model_tokens_cache_and_cost(tmp_path: Path) -> None:
        """Phoenix's REST API returns every span with its kind and parent, and the numbers of the store."""
        home = sample_home(tmp_path / "home")
        (tmp_path / "phoenix").mkdir()
        with phoenix(tmp_path / "phoenix") as address:
            to: Any = SimpleNamespace(endpoint=address, protocol="http/protobuf")
            report = send(home, to, "openinference", signals=("traces",))
            assert report.is_complete
            spans: list[dict[str, Any]] = []
            for _ in range(600):
                spans = get_json(f"{address}/v1/projects/default/spans?limit=1000")["data"]
                if len(spans) >= report.accepted["traces"]:
                    break
                threading.Event().wait(0.1)
        assert len(spans) == report.accepted["traces"]
        kinds = Counter(span["span_kind"] for span in spans)
        assert (kinds["LLM"], kinds["TOOL"], kinds["AGENT"]) == (4, 4, 2)
        calls = [span["attributes"] for span in spans if span["span_kind"] == "LLM"]
        assert Counter(each["llm.model_name"] for each in calls) == {PRICED: 3, "claude-test-1": 1}
        with connect(home) as connection:
            [(prompt, output, read, written, *_, reasoning, usd)] = connection.sql(
                STORED
            ).fetchall()
        counts = "llm.token_count"
        assert sum(each[f"{counts}.prompt"] for each in calls) == prompt
        assert sum(each[f"{counts}.completion"] for each in calls) == output
        assert sum(each[f"{counts}.prompt_details.cache_read"] for each in calls) == read
        assert sum(each[f"{counts}.prompt_details.cache_write"] for each in calls) == written
        details = f"{counts}.completion_details.reasoning"
        assert sum(each.get(details, 0) for each in calls) == reasoning
        assert sum(each.get("llm.cost.total", 0) for each in calls) == pytest.approx(float(usd))
        with_content = [s for s in spans if s["span_kind"] in ("LLM", "TOOL", "AGENT")]
        assert all({"input.value", "output.value"} <= set(s["attributes"]) for s in with_content)
        assert Counter(span["status_code"] for span in with_content) == {"OK": 9, "ERROR": 1}
        assert all("llm.invocation_parameters" in each for each in calls)
        by_id = {span["context"]["span_id"]: span for span in spans}
        roots = [span["name"] for span in spans if span["parent_id"] is None]
        assert roots == ["clerk"]
        assert all(span["parent_id"] in by_id for span in spans if span["parent_id"] is not None)

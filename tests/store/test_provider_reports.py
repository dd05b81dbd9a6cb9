"""Reports of the provider: which pages belong to which report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentobs.store.billing.provider_report import read_reports

USAGE: dict[str, Any] = {
    "uncached_input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "server_tool_use": {"web_search_requests": 0},
}  # fmt: skip
COST: dict[str, Any] = {"amount": "5.2", "list_amount": "5.2", "currency": "USD"}


@pytest.mark.parametrize(
    ("results", "kinds"),
    [
        ([[USAGE]], ["usage"]),
        ([[COST]], ["cost"]),
        ([[COST], [USAGE]], ["usage", "cost"]),
        ([[]], ["usage"]),
        ([[COST], []], ["cost"]),
    ],
)
def test_the_kinds_of_reports_in_pages(
    tmp_path: Path, results: list[list[dict[str, Any]]], kinds: list[str]
) -> None:
    """Pages of usage and of cost become two reports, and a page without results is a part of each of them."""
    paths = []
    for number, each in enumerate(results):
        day = {
            "starting_at": f"2026-09-2{number}",
            "ending_at": f"2026-09-2{number + 1}",
            "results": each,
        }
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps({"data": [day], "has_more": False}))
    reports = read_reports(paths)
    assert [report.kind for report in reports] == kinds
    whole = [report for report in reports if len(report.spans) == len(results)]
    assert len(whole) == (len(reports) if [] in results or len(results) == 1 else 0)

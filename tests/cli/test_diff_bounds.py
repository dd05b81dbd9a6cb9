"""`agentobs diff`: differences of counts that are lower bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.records.exchanges import ModelExchange
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.cli.test_commands import Shell
from tests.store.recordings import SECOND, T0, a_home


@pytest.mark.slow
def test_output_tokens_of_a_cut_response_are_a_lower_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a response was cut, its output tokens and their sum are lower bounds, and the difference is unknown."""
    home = a_home(tmp_path)
    ids = []
    with recording(home) as emit:

        def emit_cut(each: Any) -> None:
            if isinstance(each, ModelExchange):
                answer = replace(each.answer, chunks=each.answer.chunks[:2], ending="cut")
                each = replace(each, answer=answer)
            emit(each)

        for seed, emitted in ((1, emit), (2, emit_cut)):
            run = SyntheticSession(emitted, "cut", T0 + seed * 60 * SECOND, seed=seed)
            with run.interaction("Hello."):
                run.turn(text("Hello, how can I help you today?"), output_tokens=50)
            ids.append(run.end())
    found = Shell(home.path, capsys)("diff", *ids).out
    [line] = [each for each in found.splitlines() if each.startswith("output tokens")]
    found_b = re.search(r" 50 +at least (\d+) +unknown: 50 in A, at least \1 in B$", line.rstrip())
    assert found_b
    assert int(found_b[1]) < 50

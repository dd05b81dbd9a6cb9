"""Power losses: every disk state that is possible after a power loss can be opened, and contains all durable
records.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import Home, open_home
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.verification import verify
from tests.marks import mark_all_but_first
from tests.soak.power_loss import disk_image, readable_records, record_traced
from tests.store.recordings import conversation, record


def lose_power(tmp_path: Path, seed: int, images: int, opened: int) -> None:
    """Trace a recording, build `images` disk states that are possible after a power loss, and open each of them.

    `opened` of the disk states are also ingested.
    """
    sync = "always" if seed % 2 else "interval"
    folder = tmp_path / "home"
    found = record_traced(folder, seed, sync)
    home = Home(folder)
    contents = {path.name: path.read_bytes() for path in home.segments.iterdir()}
    for number in range(images):
        made, durable, acknowledged = disk_image(
            found, home, tmp_path / f"{number}", seed * 100_000 + number
        )
        image_name = f"seed {seed}, image {number}"
        missing = acknowledged - readable_records(made)
        assert not missing, f"{image_name}: {missing}"
        for name, size in durable.items():
            assert (made.segments / name).read_bytes()[:size] == contents[name][:size], image_name
        verify(made)
        if number < opened:
            ingest(made)
            with connect(made, ingest=False) as connection:
                attempts = {
                    row[0]
                    for row in connection.execute("SELECT attempt_id FROM attempts").fetchall()
                }
            assert {
                name.split()[-1] for name in acknowledged if name.startswith("attempts")
            } <= attempts, image_name
        shutil.rmtree(made.path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", mark_all_but_first(range(4), pytest.mark.crash))
def test_recordings_survive_a_power_loss(seed: int, tmp_path: Path) -> None:
    """All of 200 possible disk states can be opened without losing a synced record; with `always`, without losing an
    acknowledged record.
    """
    lose_power(tmp_path, seed, images=50, opened=2)


def test_a_generation_is_durable_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of a generation is synced before it is renamed, and its directory is synced after the rename."""
    home = open_home(tmp_path / "home")
    record(home, conversation(1))
    calls: list[tuple[str, str, int]] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "fsync":
                path = str(Path(f"/proc/self/fd/{args[0]}").readlink())
                calls.append(("fsync", path, os.fstat(args[0]).st_size))
            else:
                calls.append((name, f"{args[0]} {args[1]}", Path(args[0]).stat().st_size))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "replace"):
        noted(name)
    ingest(home)
    monkeypatch.undo()
    published = [each for each in calls if each[0] == "replace"]
    names = [Path(each[1].split()[1]).name for each in published]
    assert names[:2] == ["manifest.json", "agentobs.duckdb"]
    for renamed in published:
        source = renamed[1].split()[0]
        at = calls.index(renamed)
        assert ("fsync", source, renamed[2]) in calls[:at]
        folder = str(Path(renamed[1].split()[1]).parent)
        assert ("fsync", folder) in [each[:2] for each in calls[at:]]


@pytest.mark.crash
def test_the_store_survives_a_power_loss_while_publishing(tmp_path: Path) -> None:
    """After a power loss, the store can be opened and is complete, whichever renames reached the disk and whatever
    remains of a draft.
    """
    home = open_home(tmp_path / "home")
    states = []
    for number in (1, 2):
        record(home, conversation(number))
        ingest(home)
        states.append((home.database.read_bytes(), home.manifest.read_bytes()))
    segments = home.segments
    for number, (database, manifest) in enumerate(itertools.product((0, 1, None), (0, 1, None))):
        made = open_home(tmp_path / f"{number}")
        shutil.copy(home.path / "key", made.path / "key")
        for path in segments.iterdir():
            shutil.copy(path, made.segments / path.name)
        if database is not None:
            made.database.write_bytes(states[database][0])
            made.database.chmod(0o400)
        if manifest is not None:
            made.manifest.write_bytes(states[manifest][1])
        draft = states[1][0][: 4096 * number + 512 * number]
        (made.path / f"{generations.DRAFT}left.duckdb").write_bytes(draft)
        ingest(made)
        with connect(made) as connection:
            found = connection.execute(
                "SELECT count(*), count(DISTINCT attempt_id) FROM attempts"
            ).fetchone()
        assert found == (6, 6), (database, manifest)
        assert verify(made).ok

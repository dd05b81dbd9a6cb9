"""A deterministic simulation of everything that writes and reads a home.

Recorders, ingests, compression, prunes, archives, repairs, imports and readers run as production code on a simulated
machine: a disk that remembers what a power loss can undo (`disk.py`), and a clock, IDs and system calls that a seed
controls (`machine.py`). A seed determines a plan of steps and faults (`plan.py`). After each crash and at the end,
the invariants are checked (`truth.py`):

- An acknowledged record is never lost: not by the death of its process, and if it was synced, not by a power loss.
- Nothing is invented or doubled: each readable line is identical to one written line.
- given = written + dropped + waiting, at any time.
- Each reader can open the home after any fault.
- `verify` reports all damage and nothing else; the simulation knows what it has damaged.
- A store that is rebuilt from the segments has the same rows as the published one.

The functions of `os` and `open` are replaced, not only those of `journal/file_system.py`, so that no module can bypass
the simulated disk. A recorder has no threads here: the simulation calls the functions of its threads in an order that
the seed determines. Steps of other processes run between two system calls of a step.

Not simulated: system calls of DuckDB and SQLite, whose files can be lost or torn until Python code syncs them, but
which never fail in the middle of a statement; the order of two threads of one recorder within one call (see
tests/recording/test_faults.py and tests/recording/test_forks.py); exchanges in progress (tests/soak/process_kills.py);
real kills of processes (tests/soak/kills.py); a disk that reports a sync without having written.
"""

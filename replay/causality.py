"""Causality: the order of recorded requests that follows from the tasks, work items and threads that made them.

If a job starts other jobs and waits for all of them, it makes its next request, and starts its next job, after all of
their requests. The recording shows that it has waited if none of them made a request after that. Jobs that were started
before the others had finished are concurrent, whether or not their requests overlapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from agentobs.records.exchanges import ModelExchange

Numbered = tuple[int, ModelExchange]
"""A request with its number in the fixture."""


@dataclass(slots=True)
class _Node:
    """A job of a lane."""

    started_ns: int
    children: list[int] = field(default_factory=list)
    """The numbers of the jobs that it started."""
    requests: list[Numbered] = field(default_factory=list)
    is_worker: bool = False


def waited_for(lane: list[Numbered]) -> dict[int, list[int]] | None:
    """Return, for each request, the requests of other jobs that had ended before it or before its job was started.

    None if the job of a request is not known.
    """
    if any(exchange.job is None for _, exchange in lane):
        return None
    nodes = _nodes(lane)
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        assert exchange.job is not None
        path = exchange.job.path
        events = [(path[-1][2], exchange.started_ns)]
        if nodes[path[-1][2]].requests[0][0] == number:
            events += [(parent[2], child[1]) for parent, child in itertools.pairwise(path)]
        earlier = {each for serial, at_ns in events for each in _finished(nodes, serial, at_ns)}
        found[number] = sorted(each for each in earlier if each < number)
    return found


def _nodes(lane: list[Numbered]) -> dict[int, _Node]:
    nodes: dict[int, _Node] = {}
    for number, exchange in lane:
        assert exchange.job is not None
        above = None
        for _, started_ns, serial in exchange.job.path:
            if serial not in nodes:
                nodes[serial] = _Node(started_ns)
                if above is not None:
                    nodes[above].children.append(serial)
            above = serial
        own = nodes[exchange.job.serial]
        own.requests.append((number, exchange))
        own.is_worker = own.is_worker or exchange.job.is_worker
    return nodes


def _finished(nodes: dict[int, _Node], serial: int, at_ns: int) -> list[int]:
    """Return the requests of all jobs that a job had started by `at_ns` if all of them had ended; else none."""
    node = nodes[serial]
    if node.is_worker or not at_ns:
        return []
    started = [each for each in node.children if nodes[each].started_ns < at_ns]
    requests = [each for child in started for each in _requests_under(nodes, child)]
    if any(exchange.started_ns + exchange.ended_ns > at_ns for _, exchange in requests):
        return []
    return [number for number, _ in requests]


def _requests_under(nodes: dict[int, _Node], serial: int) -> Iterator[Numbered]:
    left = [serial]
    while left:
        node = nodes[left.pop()]
        yield from node.requests
        left += node.children


def paths_apart(group: list[Numbered]) -> dict[int, str]:
    """Return the path to the job of each request from the nearest common ancestor of all jobs.

    Empty if one job made all requests, or if the job of any request is not known.
    """
    jobs = [exchange.job for _, exchange in group]
    if not all(jobs):
        return {}
    paths = [job.path for job in jobs if job is not None]
    common = 0
    while all(len(path) > common for path in paths):
        if len({path[common][2] for path in paths}) > 1:
            break
        common += 1
    told = ["/".join(element for element, _, _ in path[common:]) for path in paths]
    if len(set(told)) < 2:
        return {}
    return {number: path for (number, _), path in zip(group, told, strict=True)}

"""Maintenance of a home as the DuckDB store implements it: ingest, check, prune, repair, and the worker for users' SQL.

This is the one place that names the implementation for maintenance; the commands and the dashboards import it from
here.
"""

from agentobs.store.duckdb.checkup import Finding, Level, check_home
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.repair import repair
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.sql_worker import Limits, Worker
from agentobs.store.duckdb.verification import verify

__all__ = [
    "Finding",
    "Level",
    "Limits",
    "Worker",
    "check_home",
    "ingest",
    "prune",
    "repair",
    "verify",
]

"""Maintenance of a home, whatever the database: publishing, checking, deleting and repairing, and queries of users."""

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

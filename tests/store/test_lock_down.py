"""Lock-down: statements cannot access files, the network, extensions, settings or variables of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb import sql_worker_main
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.generations import current
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.sql_worker import Limits, Worker
from tests.store.recordings import a_home, conversation, record

CANARY = "canary-7f3a"

READING = """
SELECT * FROM read_text('/proc/self/environ')
SELECT * FROM read_text('{tmp}/secret.txt')
SELECT * FROM read_blob('{tmp}/secret.txt')
SELECT * FROM read_text(['{tmp}/secret.txt'])
SELECT * FROM read_text('{tmp}/link.txt')
SELECT * FROM read_text('{tmp}/folder/secret.txt')
SELECT * FROM read_text('file://{tmp}/secret.txt')
SELECT * FROM read_text('file:{tmp}/secret.txt')
SELECT * FROM read_text('/proc/self/cwd/secret.txt')
SELECT * FROM read_text('/proc/self/fd/0')
SELECT * FROM read_csv('/dev/stdin')
SELECT * FROM read_csv('{tmp}/secret.csv')
SELECT * FROM read_csv_auto('{tmp}/secret.csv')
SELECT * FROM sniff_csv('{tmp}/secret.csv')
SELECT * FROM read_json('{tmp}/secret.json')
SELECT * FROM read_json_auto('{tmp}/secret.json')
SELECT * FROM read_json_objects('{tmp}/secret.json')
SELECT * FROM read_ndjson('{tmp}/secret.json')
SELECT * FROM read_ndjson_objects('{tmp}/secret.json')
SELECT * FROM read_parquet('{tmp}/secret.parquet')
SELECT * FROM parquet_scan('{tmp}/secret.parquet')
SELECT * FROM parquet_schema('{tmp}/secret.parquet')
SELECT * FROM parquet_metadata('{tmp}/secret.parquet')
SELECT * FROM parquet_kv_metadata('{tmp}/secret.parquet')
SELECT * FROM parquet_file_metadata('{tmp}/secret.parquet')
SELECT * FROM parquet_bloom_probe('{tmp}/secret.parquet', 'a', 1)
SELECT * FROM read_duckdb('{tmp}/secret.duckdb', table_name = 'a')
SELECT * FROM glob('{tmp}/*')
SELECT * FROM glob('/etc/*')
SELECT * FROM '{tmp}/secret.csv'
SELECT * FROM "{tmp}/secret.csv"
SELECT * FROM '{tmp}/*.json'
SELECT * FROM '~/.ssh/id_rsa'
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM 'https://example.invalid/x.csv'
SELECT * FROM read_parquet('https://example.invalid/x')
SELECT * FROM read_text('http://169.254.169.254/latest/meta-data')
SELECT * FROM read_blob('{home}/agentobs.duckdb')
SELECT * FROM read_blob('{home}/agentobs.duckdb.wal')
SELECT * FROM read_blob('{home}/key')
SELECT * FROM read_text('{home}/agentobs.duckdb/../key')
SELECT * FROM query('SELECT * FROM read_text(''{tmp}/secret.txt'')')
SELECT * FROM query_table('{tmp}/secret.csv')
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{tmp}/secret.txt'')'))
SELECT (SELECT content FROM read_text('{tmp}/secret.txt'))
WITH a AS MATERIALIZED (FROM read_text('{tmp}/secret.txt')) FROM a
DESCRIBE SELECT * FROM read_csv('{tmp}/secret.csv')
SUMMARIZE FROM read_csv('{tmp}/secret.csv')
EXPLAIN ANALYZE SELECT * FROM read_text('{tmp}/secret.txt')
SELECT getenv('CANARY')
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM arrow_scan_dumb(1, 2, 3)
SELECT * FROM pandas_scan(1)
SELECT * FROM python_map_function(1, 2)
SELECT * FROM seq_scan('segments')
"""
WRITING = """
COPY (SELECT 1) TO '{tmp}/out.csv'
COPY (SELECT 1) TO '{tmp}/out.parquet' (FORMAT parquet)
COPY (SELECT 1) TO '{tmp}/secret.txt' (FORMAT csv, USE_TMP_FILE false)
COPY (SELECT 1 AS a, 2 AS b) TO '{tmp}/parts' (FORMAT csv, PARTITION_BY (a))
COPY (SELECT 1) TO '{home}/agentobs.duckdb'
COPY (SELECT 1) TO '{home}/agentobs.duckdb' (FORMAT csv, USE_TMP_FILE false)
COPY (SELECT 1) TO '{home}/agentobs.duckdb.wal'
COPY (SELECT 1) TO '{home}/agentobs.duckdb.wal.recovery'
COPY (SELECT 1) TO '{home}/agentobs.duckdb.wal.checkpoint'
COPY (SELECT 1) TO '{home}/manifest.json'
COPY (SELECT 1) TO '/dev/stdout'
COPY (SELECT 1) TO 's3://bucket/x.csv'
COPY published.main.segments FROM '{tmp}/secret.csv'
EXPORT DATABASE '{tmp}/out'
EXPORT DATABASE '{home}'
IMPORT DATABASE '{tmp}'
SET profiling_output = '{tmp}/profile'
PRAGMA profiling_output = '{tmp}/profile'
PRAGMA enable_profiling = 'json'
SET log_query_path = '{tmp}/queries'
CALL enable_profiling(save_location = '{tmp}/profile')
CALL enable_logging(storage = 'file', storage_path = '{tmp}/logs')
SELECT * FROM enable_logging(storage = 'file', storage_path = '{tmp}/logs')
SELECT * FROM disable_logging()
INSERT INTO published.main.attempts (attempt_id) VALUES ('x')
UPDATE published.main.segments SET records = 0
DELETE FROM published.main.segments
TRUNCATE published.main.segments
DROP TABLE published.main.segments
ALTER TABLE published.main.segments ADD COLUMN a INTEGER
CREATE TABLE published.main.more (a INTEGER)
CREATE OR REPLACE VIEW published.main.sessions AS SELECT 1
"""
OTHERS = """
ATTACH '{tmp}/other.duckdb'
ATTACH '{home}/agentobs.duckdb' AS again (READ_ONLY)
ATTACH '{home}/agentobs.duckdb' AS again
ATTACH 'https://example.invalid/x.duckdb' AS web
ATTACH 's3://bucket/x.duckdb' AS web
ATTACH '{tmp}/x.sqlite' (TYPE sqlite)
ATTACH 'host=127.0.0.1' AS pg (TYPE postgres)
INSTALL httpfs
FORCE INSTALL httpfs FROM community
INSTALL '{tmp}/x.duckdb_extension'
UPDATE EXTENSIONS
LOAD httpfs
LOAD '{tmp}/x.duckdb_extension'
SELECT * FROM duckdb_extensions()
CALL start_ui()
CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')
"""
SETTING = """
SET lock_configuration = false
RESET lock_configuration
SET enable_external_access = true
RESET enable_external_access
SET disabled_filesystems = ''
RESET disabled_filesystems
SET allowed_directories = ['/']
SET allowed_paths = ['/etc/passwd']
SET GLOBAL memory_limit = '1TB'
RESET memory_limit
PRAGMA memory_limit = '1TB'
SET max_execution_time = 0
RESET max_execution_time
SET temp_directory = '{tmp}'
SET max_temp_directory_size = '1TB'
SET threads = 64
PRAGMA threads = 64
SET python_enable_replacements = true
SET python_scan_all_frames = true
SET autoload_known_extensions = true
SET autoinstall_known_extensions = true
SET allow_unsigned_extensions = true
SET allow_community_extensions = true
SET allow_persistent_secrets = true
SET custom_extension_repository = 'https://example.invalid'
SET extension_directory = '{tmp}'
SET secret_directory = '{tmp}'
SET home_directory = '{tmp}'
SET file_search_path = '{tmp}'
SET SESSION max_expression_depth = 100000000
SET http_proxy = 'http://127.0.0.1:1'
SET errors_as_json = true
"""
VARIABLES = """
SELECT * FROM python_variable
SELECT * FROM CANARY
SELECT * FROM os
SELECT * FROM "tests.store.test_lock_down"
"""
STATEMENTS = r"""
SELECT 1; SELECT 2
SELECT 1;; SELECT 2
SELECT 1; COPY (SELECT 1) TO '{tmp}/out.csv'
SELECT 1 /* ; */; -- ; \nDROP VIEW sessions
/* SELECT 1 */ DROP VIEW sessions
-- SELECT 1\nDROP VIEW sessions
--
CREATE TABLE t (a INTEGER)
CREATE TEMP TABLE t AS SELECT 1
CREATE MACRO m() AS TABLE FROM sessions
CREATE FUNCTION f() AS 1
CREATE TYPE mood AS ENUM ('a')
CREATE SEQUENCE s
DROP VIEW sessions
DELETE FROM segments
INSERT INTO segments SELECT * FROM segments
MERGE INTO segments USING segments AS s ON false WHEN NOT MATCHED THEN INSERT
WITH gone AS (DELETE FROM tail.attempts RETURNING *) SELECT count(*) FROM gone
WITH more AS (INSERT INTO tail.attempts (attempt_id) VALUES ('x') RETURNING *) FROM more
EXPLAIN ANALYZE DELETE FROM tail.attempts
EXPLAIN (ANALYZE) DELETE FROM tail.attempts
EXPLAIN ANALYZE COPY (SELECT 1) TO '{tmp}/out.csv'
EXPLAIN /* */ ANALYZE DELETE FROM tail.attempts
EXPLAIN ANALYZE CREATE TABLE t (a INTEGER)
PREPARE p AS SELECT 1
EXECUTE p
DEALLOCATE p
CALL pragma_version()
PRAGMA database_list
SET VARIABLE a = 1
USE published
DETACH published
ATTACH ':memory:' AS other
BEGIN
COMMIT
ROLLBACK
CHECKPOINT
VACUUM
ANALYZE
COMMENT ON VIEW sessions IS 'x'
CREATE TEMP SECRET s (TYPE http, BEARER_TOKEN 'x')
PIVOT sessions ON name
LOAD json
ЅELECT 1
SЕLECT 1
ＳＥＬＥＣＴ 1
SEL\u200bECT 1
SEL\u0130CT 1
\u202eSELECT 1
SELECT \x00 1
"""


RESOURCE_ATTACKS = [
    (kind, line)
    for kind, text in (
        ("reading", READING),
        ("writing", WRITING),
        ("other resources", OTHERS),
        ("settings", SETTING),
        ("variables", VARIABLES),
    )
    for line in text.strip().split("\n")
]
"""Attacks on external resources, which both a worker and a connection of the library refuse."""
ATTACKS = RESOURCE_ATTACKS + [
    (
        "statements",
        re.sub(r"\\u[0-9a-f]{4}|\\n|\\x00", lambda found: ast.literal_eval(f'"{found[0]}"'), line),
    )
    for line in STATEMENTS.strip().split("\n")
]
"""All attacks, including statements other than queries, which only a worker refuses."""


@dataclass
class Target:
    """An attacked store, the directory around it, and the state of all files before the attacks."""

    tmp: Path
    home: Path
    before: dict[str, tuple[int, ...]]

    def fill(self, sql: str) -> str:
        return sql.replace("{tmp}", str(self.tmp)).replace("{home}", str(self.home))


def files(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return all files with the properties that change at each write."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {name: (each.st_ino, each.st_size, each.st_mtime_ns) for name, each in found.items()}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    tmp = tmp_path_factory.mktemp("attacked")
    home = a_home(tmp)
    record(home, conversation(1))
    ingest(home)
    record(home, conversation(2))
    for name in ("secret.txt", "secret.csv", "schema.sql"):
        (tmp / name).write_text(f"{CANARY}\n")
    (tmp / "secret.json").write_text(f'{{"a": "{CANARY}"}}\n')
    with duckdb.connect(str(tmp / "secret.duckdb")) as connection:
        connection.execute(f"CREATE TABLE a AS SELECT '{CANARY}' AS a")
        connection.execute(f"COPY (SELECT '{CANARY}' AS a) TO '{tmp}/secret.parquet'")
    (tmp / "link.txt").symlink_to(tmp / "secret.txt")
    (tmp / "folder").symlink_to(tmp)
    return Target(tmp, home.path, files(tmp))


@pytest.fixture(scope="module")
def worker(target: Target) -> Iterator[Worker]:
    """A worker in a directory with secrets, and with a secret in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY", CANARY)
        patch.chdir(target.tmp)
        with Worker(target.home, Limits(timeout_seconds=300), ingest=False) as worker:
            yield worker


@pytest.fixture(scope="module")
def connection(target: Target) -> Iterator[duckdb.DuckDBPyConnection]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY", CANARY)
        with connect(target.home, ingest=False) as connection:
            yield connection


def test_there_are_enough_attacks() -> None:
    """The table contains at least the 59 attacks that were measured, without duplicates."""
    assert len(ATTACKS) >= 59
    assert len(set(ATTACKS)) == len(ATTACKS)
    assert len({kind for kind, _ in ATTACKS}) == 6


@pytest.mark.parametrize(
    ("kind", "sql"),
    ATTACKS,
    ids=[f"{kind}-{sql[:60]}" for kind, sql in ATTACKS],
)
def test_a_worker_refuses_each_attack(worker: Worker, target: Target, kind: str, sql: str) -> None:
    """The worker refuses each attack and keeps working; no file is read, created or changed."""
    python_variable = worker  # noqa: F841  # what a scan of variables would find
    with pytest.raises(UsageError) as refused:
        list(worker.run(target.fill(sql)).rows)
    assert "was stopped" not in str(refused.value)
    if kind == "reading":
        assert CANARY not in str(refused.value)
    assert list(worker.run("SELECT count(*) FROM attempts").rows) == [(6,)]
    assert files(target.tmp) == target.before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sql"), RESOURCE_ATTACKS, ids=[f"{kind}-{sql[:60]}" for kind, sql in RESOURCE_ATTACKS]
)
def test_a_connection_refuses_attacks_on_external_resources(
    connection: duckdb.DuckDBPyConnection, target: Target, kind: str, sql: str
) -> None:
    """A connection, which accepts any kind of statement, also refuses each attack on external resources."""
    python_variable = connection  # noqa: F841
    with pytest.raises(duckdb.Error):
        connection.execute(target.fill(sql)).fetchall()
    assert connection.execute("SELECT count(*) FROM attempts").fetchall() == [(6,)]
    assert files(target.tmp) == target.before


def test_the_store_is_unchanged_after_all_attacks(
    connection: duckdb.DuckDBPyConnection, target: Target
) -> None:
    """After all attacks, the first generation is still the published one, and there are no other files next to the
    store.
    """
    generation = current(Home(target.home))
    assert generation is not None
    assert generation.number == 1
    found = [path.name for path in target.home.glob("agentobs.duckdb*")]
    assert found == ["agentobs.duckdb"]


SETTINGS = {
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
    "python_scan_all_frames": "false",
    "temp_directory": "",
}


def test_all_protective_settings_are_active(
    connection: duckdb.DuckDBPyConnection, worker: Worker, target: Target
) -> None:
    """All settings that protect against attacks have their expected values; several of them protect against each kind
    of attack. A worker has the same settings, but a query cannot read them.
    """
    sql = "SELECT name, value FROM duckdb_settings() WHERE name IN (SELECT unnest($names))"
    names = {"names": list(SETTINGS)}
    assert dict(connection.execute(sql, names).fetchall()) == SETTINGS
    with sql_worker_main._opened(target.home, False, Limits()) as of_worker:
        assert dict(of_worker.execute(sql, names).fetchall()) == SETTINGS
    with pytest.raises(UsageError, match="duckdb_settings is not available"):
        worker.run(sql, names)


def test_parameters_are_only_values(worker: Worker) -> None:
    """A parameter is only used as a value, whatever it contains."""
    for hostile in ("'; DROP VIEW sessions; --", "$$ || 1", "\x00", "?", "$a", '"'):
        assert list(worker.run("SELECT ?", [hostile]).rows) == [(hostile,)]
        assert list(worker.run("SELECT $a", {"a": hostile}).rows) == [(hostile,)]
    with pytest.raises(UsageError):
        worker.run("SELECT * FROM ?", ["sessions"])
    with pytest.raises(UsageError):
        worker.run("SELECT $a", {"b": 1})


QUESTIONS = [
    "SELECT 1 AS a",
    "select 1 as a;",
    "/* why */ SELECT 1 AS a -- so",
    "(SELECT 1)",
    "WITH a AS (SELECT 1 AS b) FROM a",
    "FROM sessions",
    "VALUES (1)",
    "TABLE sessions",
    "DESCRIBE sessions",
    "DESCRIBE SELECT 1",
    "SUMMARIZE turns",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SHOW sessions",
    "EXPLAIN SELECT 1",
    "explain analyze SELECT 1",
    "EXPLAIN (FORMAT json) SELECT 1",
    "EXPLAIN (ANALYZE, FORMAT json) FROM sessions",
    "SELECT now()",
]


@pytest.mark.parametrize("sql", QUESTIONS)
def test_a_worker_accepts_all_kinds_of_queries(worker: Worker, sql: str) -> None:
    """A worker accepts each kind of SELECT statement."""
    assert list(worker.run(sql).rows)

-- Which columns does each table and view have, with their comments?
SELECT live.table_name AS of, live.column_name AS name, live.data_type AS type, commented.comment
FROM duckdb_columns() AS live
LEFT JOIN duckdb_columns() AS commented
    ON commented.database_name = 'published' AND commented.table_name = live.table_name
    AND commented.column_name = live.column_name
WHERE live.database_name = 'memory' AND live.schema_name = 'main' AND NOT live.internal
ORDER BY live.table_name, live.column_index;

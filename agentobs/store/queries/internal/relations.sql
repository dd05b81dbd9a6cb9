-- Which tables and views does the store have, with their comments, views first?
WITH listed AS (
    SELECT view_name AS name, true AS is_view FROM duckdb_views()
    WHERE database_name = 'memory' AND schema_name = 'main' AND NOT internal
    UNION
    SELECT table_name, false FROM duckdb_tables() WHERE database_name = 'memory' AND schema_name = 'main'
), published AS (
    SELECT view_name AS name, comment, true AS is_view FROM duckdb_views() WHERE database_name = 'published'
    UNION ALL
    SELECT table_name, comment, false FROM duckdb_tables() WHERE database_name = 'published'
)
SELECT name, coalesce(published.is_view, listed.is_view) AS is_view, comment
FROM listed
LEFT JOIN published USING (name)
ORDER BY is_view DESC, name;

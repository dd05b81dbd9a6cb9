-- Which segments of the journal cannot be read completely?
SELECT segment_id, state, damaged_records, missing_records, opened_ns
FROM segments
WHERE damaged_records > 0 OR missing_records > 0
ORDER BY opened_ns DESC, segment_id;

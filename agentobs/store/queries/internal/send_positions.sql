-- How far was each session sent to one destination?
SELECT signal, session_id, through_segment_id, through_sequence, complete, partial_items
FROM exports WHERE destination = $destination::VARCHAR ORDER BY segment_id, sequence;

-- Why did each session fail that failed, crashed, or whose end could not be written?
SELECT session_id, summary FROM failures;

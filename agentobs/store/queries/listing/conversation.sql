-- Which sessions belong to one conversation, oldest first?
SELECT * EXCLUDE (words, fact_words, title, has_failed_calls) FROM app.listing WHERE conversation_id = $conversation_id::VARCHAR ORDER BY started_ns, session_id;

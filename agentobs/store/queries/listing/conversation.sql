-- Which sessions belong to one conversation, oldest first?
FROM app.listing WHERE conversation_id = $conversation_id::VARCHAR ORDER BY started_ns, session_id;

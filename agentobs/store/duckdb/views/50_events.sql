-- Events: every fact that happened at an instant as one stream. Written by `make docs` from the catalog in
-- agentobs/records/event_catalog.py; change that, not this file.

CREATE OR REPLACE VIEW event_log AS
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    at_ns, kind, label,
    coalesce(labels, MAP {}::MAP(VARCHAR, VARCHAR)) AS labels,
    coalesce(numbers, MAP {}::MAP(VARCHAR, DOUBLE)) AS numbers,
    rate
FROM events
UNION ALL
SELECT
    session_id, NULL::VARCHAR, NULL::BIGINT, NULL::VARCHAR, NULL::VARCHAR, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    started_ns, 'session', name,
    map_from_entries(list_filter([
        {'k': 'entry', 'v': entry::VARCHAR},
        {'k': 'agentobs_version', 'v': agentobs_version::VARCHAR},
        {'k': 'sdk_version', 'v': sdk_version::VARCHAR},
        {'k': 'python_version', 'v': python_version::VARCHAR},
        {'k': 'platform', 'v': platform::VARCHAR},
        {'k': 'continues_session_id', 'v': continues_session_id::VARCHAR},
        {'k': 'relation', 'v': relation::VARCHAR},
        {'k': 'content', 'v': content::VARCHAR},
        {'k': 'options', 'v': options::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    MAP {}::MAP(VARCHAR, DOUBLE),
    1.0
FROM session_starts
UNION ALL
SELECT
    session_id, NULL::VARCHAR, NULL::BIGINT, NULL::VARCHAR, NULL::VARCHAR, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    ended_ns, 'session_end', outcome,
    map_from_entries(list_filter([
        {'k': 'reason', 'v': reason::VARCHAR},
        {'k': 'signature', 'v': signature::VARCHAR},
        {'k': 'error_class', 'v': error_class::VARCHAR},
        {'k': 'error_file', 'v': error_file::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'dropped', 'v': dropped::DOUBLE},
        {'k': 'error_line', 'v': error_line::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM session_ends
UNION ALL
SELECT
    session_id, interaction_id, NULL::BIGINT, lane, query_source, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    started_ns, 'interaction', NULL::VARCHAR,
    MAP {}::MAP(VARCHAR, VARCHAR),
    MAP {}::MAP(VARCHAR, DOUBLE),
    1.0
FROM interaction_starts
UNION ALL
SELECT
    session_id, interaction_id, NULL::BIGINT, lane, query_source, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    ended_ns, 'interaction_end', result,
    MAP {}::MAP(VARCHAR, VARCHAR),
    map_from_entries(list_filter([
        {'k': 'is_error', 'v': is_error::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM interaction_ends
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    started_ns, 'attempt', outcome,
    map_from_entries(list_filter([
        {'k': 'llm_request_id', 'v': llm_request_id::VARCHAR},
        {'k': 'attempt_id', 'v': attempt_id::VARCHAR},
        {'k': 'endpoint', 'v': endpoint::VARCHAR},
        {'k': 'model_requested', 'v': model_requested::VARCHAR},
        {'k': 'model', 'v': model::VARCHAR},
        {'k': 'error_type', 'v': error_type::VARCHAR},
        {'k': 'stop_reason', 'v': stop_reason::VARCHAR},
        {'k': 'limit_hit', 'v': limit_hit::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'attempt', 'v': attempt::DOUBLE},
        {'k': 'duration_ns', 'v': duration_ns::DOUBLE},
        {'k': 'headers_ns', 'v': headers_ns::DOUBLE},
        {'k': 'first_chunk_ns', 'v': first_chunk_ns::DOUBLE},
        {'k': 'makes_turns', 'v': makes_turns::DOUBLE},
        {'k': 'streamed', 'v': streamed::DOUBLE},
        {'k': 'status', 'v': status::DOUBLE},
        {'k': 'retry_after_ms', 'v': retry_after_ms::DOUBLE},
        {'k': 'message_count', 'v': message_count::DOUBLE},
        {'k': 'tool_use_count', 'v': tool_use_count::DOUBLE},
        {'k': 'request_bytes', 'v': request_bytes::DOUBLE},
        {'k': 'response_bytes', 'v': response_bytes::DOUBLE},
        {'k': 'chunk_count', 'v': chunk_count::DOUBLE},
        {'k': 'redactions', 'v': redactions::DOUBLE},
        {'k': 'claims_success', 'v': claims_success::DOUBLE},
        {'k': 'first_token_ns', 'v': first_token_ns::DOUBLE},
        {'k': 'has_tool_calls', 'v': (tool_use_count > 0)::INTEGER::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM attempts
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    requested_ns, 'tool_use', name,
    map_from_entries(list_filter([
        {'k': 'tool_use_id', 'v': tool_use_id::VARCHAR},
        {'k': 'attempt_id', 'v': attempt_id::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'ordinal', 'v': ordinal::DOUBLE},
        {'k': 'input_bytes', 'v': input_bytes::DOUBLE},
        {'k': 'lines_added', 'v': lines_added::DOUBLE},
        {'k': 'lines_removed', 'v': lines_removed::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM tool_uses
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    result_ns, 'tool', CASE outcome WHEN 'duplicate' THEN 'deduplicated' ELSE outcome END,
    map_from_entries(list_filter([
        {'k': 'tool_use_id', 'v': tool_use_id::VARCHAR},
        {'k': 'tool', 'v': tool::VARCHAR},
        {'k': 'source', 'v': source::VARCHAR},
        {'k': 'error_kind', 'v': error_kind::VARCHAR},
        {'k': 'error_origin', 'v': error_origin::VARCHAR},
        {'k': 'error_class', 'v': error_class::VARCHAR},
        {'k': 'error_file', 'v': error_file::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'duration_ns', 'v': duration_ns::DOUBLE},
        {'k': 'is_error', 'v': is_error::DOUBLE},
        {'k': 'attempts', 'v': attempts::DOUBLE},
        {'k': 'requested_bytes', 'v': requested_bytes::DOUBLE},
        {'k': 'executed_bytes', 'v': executed_bytes::DOUBLE},
        {'k': 'coerced', 'v': coerced::DOUBLE},
        {'k': 'result_bytes', 'v': result_bytes::DOUBLE},
        {'k': 'text_characters', 'v': text_characters::DOUBLE},
        {'k': 'error_line', 'v': error_line::DOUBLE},
        {'k': 'lines_added', 'v': lines_added::DOUBLE},
        {'k': 'lines_removed', 'v': lines_removed::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM tool_results
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    requested_ns, 'provider_tool_use', name,
    map_from_entries(list_filter([
        {'k': 'tool_use_id', 'v': tool_use_id::VARCHAR},
        {'k': 'attempt_id', 'v': attempt_id::VARCHAR},
        {'k': 'server', 'v': server::VARCHAR},
        {'k': 'caller_id', 'v': caller_id::VARCHAR},
        {'k': 'batch_result_id', 'v': batch_result_id::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'ordinal', 'v': ordinal::DOUBLE},
        {'k': 'is_timed', 'v': is_timed::DOUBLE},
        {'k': 'input_bytes', 'v': input_bytes::DOUBLE},
        {'k': 'use', 'v': use::DOUBLE},
        {'k': 'max_uses', 'v': max_uses::DOUBLE},
        {'k': 'max_result_tokens', 'v': max_result_tokens::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM provider_tool_uses
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    result_ns, 'provider_tool', outcome,
    map_from_entries(list_filter([
        {'k': 'tool_use_id', 'v': tool_use_id::VARCHAR},
        {'k': 'attempt_id', 'v': attempt_id::VARCHAR},
        {'k': 'result_attempt_id', 'v': result_attempt_id::VARCHAR},
        {'k': 'type', 'v': type::VARCHAR},
        {'k': 'error_code', 'v': error_code::VARCHAR},
        {'k': 'stop_reason', 'v': stop_reason::VARCHAR},
        {'k': 'batch_result_id', 'v': batch_result_id::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'duration_ns', 'v': duration_ns::DOUBLE},
        {'k': 'is_error', 'v': is_error::DOUBLE},
        {'k': 'result_bytes', 'v': result_bytes::DOUBLE},
        {'k': 'items', 'v': items::DOUBLE},
        {'k': 'return_code', 'v': return_code::DOUBLE},
        {'k': 'iteration', 'v': iteration::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM provider_tool_results
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    at_ns, 'permission', behavior,
    map_from_entries(list_filter([
        {'k': 'tool_use_id', 'v': tool_use_id::VARCHAR},
        {'k': 'tool', 'v': tool::VARCHAR},
        {'k': 'reason_type', 'v': reason_type::VARCHAR},
        {'k': 'source', 'v': source::VARCHAR},
        {'k': 'resolver', 'v': resolver::VARCHAR},
        {'k': 'rule', 'v': rule::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'approval_requested', 'v': approval_requested::DOUBLE},
        {'k': 'approval_wait_ns', 'v': approval_wait_ns::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM permissions
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, query_source, chain_id, depth, session_sequence,
    started_ns, 'world_answer', kind,
    map_from_entries(list_filter([
        {'k': 'key', 'v': key::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'duration_ns', 'v': duration_ns::DOUBLE},
        {'k': 'answer_bytes', 'v': answer_bytes::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM world_answers
UNION ALL
SELECT
    session_id, interaction_id, turn, lane, NULL::VARCHAR, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    at_ns, 'score', name,
    map_from_entries(list_filter([
        {'k': 'value_type', 'v': value_type::VARCHAR},
        {'k': 'label', 'v': label::VARCHAR},
        {'k': 'source', 'v': source::VARCHAR},
        {'k': 'tool_use_id', 'v': tool_use_id::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'value', 'v': value::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM scores
UNION ALL
SELECT
    session_id, NULL::VARCHAR, NULL::BIGINT, NULL::VARCHAR, NULL::VARCHAR, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    at_ns, 'gap', kind,
    map_from_entries(list_filter([
        {'k': 'reason', 'v': reason::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'records', 'v': records::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM gaps
UNION ALL
SELECT
    session_id, NULL::VARCHAR, NULL::BIGINT, NULL::VARCHAR, NULL::VARCHAR, NULL::VARCHAR, NULL::BIGINT, session_sequence,
    ended_ns, 'orphan', NULL::VARCHAR,
    map_from_entries(list_filter([
        {'k': 'span_id', 'v': span_id::VARCHAR}
    ], lambda e: e.v IS NOT NULL)),
    map_from_entries(list_filter([
        {'k': 'last_activity_ns', 'v': last_activity_ns::DOUBLE},
        {'k': 'late', 'v': late::DOUBLE}
    ], lambda e: e.v IS NOT NULL)),
    1.0
FROM span_ends
WHERE status = 'orphaned';

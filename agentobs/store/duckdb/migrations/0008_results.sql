-- What sessions came to: what their functions returned, and where the words of a failure are.

ALTER TABLE session_ends ADD COLUMN end_content VARCHAR;
ALTER TABLE session_ends ADD COLUMN result_digest VARCHAR;
ALTER TABLE session_ends ADD COLUMN result_type VARCHAR;
COMMENT ON COLUMN session_ends.end_content IS 'Content id of the reason in words and of what its function returned; NULL if there is neither, and with content off.';
COMMENT ON COLUMN session_ends.result_digest IS 'Keyed digest of what its function returned, equal for equal values; NULL if it returned nothing that is kept.';
COMMENT ON COLUMN session_ends.result_type IS 'The class of what its function returned, as `module:name`, or NULL.';
COMMENT ON COLUMN session_ends.reason IS 'Why it failed: the class of an exception, the result of its last interaction, or the text that its code declared; a keyed digest if that is not a label.';

-- What went out to other tools, and what came in from them.

-- What a backend has taken after the fact. It stands in segments of its own, so that a store that is built anew agrees.

CREATE TABLE exports (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    destination VARCHAR,
    profile VARCHAR,
    signal VARCHAR,
    through_segment_id VARCHAR,
    through_sequence BIGINT,
    items BIGINT,
    rejected BIGINT,
    whole BOOLEAN,
    at_ns BIGINT,
    beyond BIGINT,
    session_sequence BIGINT
);
COMMENT ON TABLE exports IS 'One row for each step of an export after the fact: how far a session was sent to a destination, and what that did not take.';
COMMENT ON COLUMN exports.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN exports.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN exports.session_id IS 'The session that was sent.';
COMMENT ON COLUMN exports.destination IS 'Where to: host and port, with a digest of the path where there is one; or the name that it was given.';
COMMENT ON COLUMN exports.profile IS 'The language of names that was spoken, such as `both`.';
COMMENT ON COLUMN exports.signal IS '`traces`, `logs` or `metrics`.';
COMMENT ON COLUMN exports.through_segment_id IS 'The segment of the session that was sent so far.';
COMMENT ON COLUMN exports.through_sequence IS 'The number of the last record in that segment whose telemetry was sent.';
COMMENT ON COLUMN exports.items IS 'What was sent with this step: spans, log records or data points.';
COMMENT ON COLUMN exports.rejected IS 'What the destination did not take of the message that this step ended with, whichever of its sessions that was of; it is not sent again.';
COMMENT ON COLUMN exports.whole IS 'Whether the session has ended and all of it was sent.';
COMMENT ON COLUMN exports.at_ns IS 'When that was noted. [ns since 1970 UTC]';
COMMENT ON COLUMN exports.beyond IS 'How many things were taken of those that the next record finishes, or of those that nobody ended: 0 unless a step ended among them.';
COMMENT ON COLUMN exports.session_sequence IS 'Always NULL: it is told from outside of the session.';

ALTER TABLE session_starts ADD COLUMN live_exports MAP(VARCHAR, VARCHAR);
COMMENT ON COLUMN session_starts.live_exports IS 'Where telemetry went while it ran: the profile of each backend by its destination; NULL without any, and in records from before this was noted.';

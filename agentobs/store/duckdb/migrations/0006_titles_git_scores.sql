CREATE TABLE session_titles (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    at_ns BIGINT,
    title VARCHAR,
    source VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE session_titles IS 'Titles that a program or a person gave to sessions. The last one applies.';
COMMENT ON COLUMN session_titles.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN session_titles.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN session_titles.session_id IS 'The ID of the session.';
COMMENT ON COLUMN session_titles.at_ns IS 'When the title was set. [ns since 1970 UTC]';
COMMENT ON COLUMN session_titles.title IS 'The title, as a keyed digest; the text is content.';
COMMENT ON COLUMN session_titles.source IS '`program`: `agentobs.session` or `agentobs.title`; `command`: `agentobs title`.';
COMMENT ON COLUMN session_titles.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

CREATE TABLE git_states (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    at_ns BIGINT,
    repository VARCHAR,
    branch VARCHAR,
    commit VARCHAR,
    dirty BOOLEAN,
    source VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    directory VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE git_states IS 'The state of the git repository in which a session ran, at its start, and whenever its program recorded it again.';
COMMENT ON COLUMN git_states.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN git_states.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN git_states.session_id IS 'The ID of the session.';
COMMENT ON COLUMN git_states.at_ns IS 'When the state was read, or when the client wrote it into its log. [ns since 1970 UTC]';
COMMENT ON COLUMN git_states.repository IS 'The repository: host and path of its remote `origin`, or its directory if it has none, as a keyed digest; as text with `Options(git="names")`; NULL if unknown.';
COMMENT ON COLUMN git_states.branch IS 'The branch, as a keyed digest; as text with `Options(git="names")`; NULL if no branch is checked out, or if unknown.';
COMMENT ON COLUMN git_states.commit IS 'The ID of the commit that was checked out; NULL if there is none, or if unknown.';
COMMENT ON COLUMN git_states.dirty IS 'Whether tracked files differed from the commit, or untracked files existed; NULL if unknown.';
COMMENT ON COLUMN git_states.source IS '`start`: the start of the session; `program`: `agentobs.record_git`; `log`: the log of an imported session.';
COMMENT ON COLUMN git_states.lane IS 'The lane of the caller, or NULL.';
COMMENT ON COLUMN git_states.turn IS 'The turn of the caller within the lane, or NULL.';
COMMENT ON COLUMN git_states.directory IS 'The working directory in the log of an imported session, as a keyed digest; else NULL.';
COMMENT ON COLUMN git_states.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

CREATE TABLE scores (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    at_ns BIGINT,
    name VARCHAR,
    value_type VARCHAR,
    value DOUBLE,
    label VARCHAR,
    comment VARCHAR,
    source VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    tool_use_id VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE scores IS 'Scores of sessions, turns and tool calls, with all earlier values; `latest_scores` has only the last ones.';
COMMENT ON COLUMN scores.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN scores.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN scores.session_id IS 'The ID of the session.';
COMMENT ON COLUMN scores.at_ns IS 'When the score was given. [ns since 1970 UTC]';
COMMENT ON COLUMN scores.name IS 'The name of the score, such as `correct`; a keyed digest if it is not a name.';
COMMENT ON COLUMN scores.value_type IS '`number`, `boolean` or `label`.';
COMMENT ON COLUMN scores.value IS 'The number; 1 or 0 for a boolean; NULL for a label.';
COMMENT ON COLUMN scores.label IS 'The label; NULL for a number or a boolean.';
COMMENT ON COLUMN scores.comment IS 'The comment, as a keyed digest; the text is content. NULL if there is none.';
COMMENT ON COLUMN scores.source IS '`program`: `agentobs.score`; `command`: `agentobs score`.';
COMMENT ON COLUMN scores.interaction_id IS 'The interaction of the turn or of the tool call, or the interaction in which the program gave the score; else NULL.';
COMMENT ON COLUMN scores.lane IS 'The lane of the turn or of the tool call; NULL for the score of a session.';
COMMENT ON COLUMN scores.turn IS 'The turn within the lane, from 1; NULL for the score of a session or a tool call.';
COMMENT ON COLUMN scores.tool_use_id IS 'The ID of the tool call; NULL for the score of a session or a turn.';
COMMENT ON COLUMN scores.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

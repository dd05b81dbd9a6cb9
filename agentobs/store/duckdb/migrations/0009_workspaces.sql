CREATE TABLE workspace_states (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    attempt_id VARCHAR,
    at_ns BIGINT,
    duration_ns BIGINT,
    source VARCHAR,
    workspace_id VARCHAR,
    state BIGINT,
    tree VARCHAR,
    files BIGINT,
    bytes BIGINT,
    uncaptured BIGINT,
    changes BIGINT,
    is_stable BOOLEAN,
    late BOOLEAN,
    failure VARCHAR,
    repository VARCHAR,
    branch VARCHAR,
    commit VARCHAR,
    dirty BOOLEAN,
    session_sequence BIGINT
);
COMMENT ON TABLE workspace_states IS 'The state of the files of a workspace when a session started, at each of its requests, and when it ended. Only sessions that record files have rows.';
COMMENT ON COLUMN workspace_states.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN workspace_states.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN workspace_states.session_id IS 'The ID of the session.';
COMMENT ON COLUMN workspace_states.interaction_id IS 'The interaction of the request, or NULL.';
COMMENT ON COLUMN workspace_states.lane IS 'The lane of the request; NULL for the start and the end of a session.';
COMMENT ON COLUMN workspace_states.turn IS 'The turn that the request started, within the lane, from 1: the state is the one before the tools of this turn ran. NULL if the request is not one of a turn, and for the start and the end of a session.';
COMMENT ON COLUMN workspace_states.attempt_id IS 'The attempt that was being sent when the files were read, or NULL.';
COMMENT ON COLUMN workspace_states.at_ns IS 'When the first file was read. [ns since 1970 UTC]';
COMMENT ON COLUMN workspace_states.duration_ns IS 'How long the files were read. [ns]';
COMMENT ON COLUMN workspace_states.source IS '`start`: the start of the session; `request`: a request to a model; `end`: the end of the session.';
COMMENT ON COLUMN workspace_states.workspace_id IS 'The workspace: a keyed digest of its path; also the name of its directory in the home.';
COMMENT ON COLUMN workspace_states.state IS 'The number of the state in the session, from 1; equal consecutive states have one number. NULL if the files could not be read.';
COMMENT ON COLUMN workspace_states.tree IS 'The ID of the state in the shadow repository, as a keyed digest; equal files have equal digests.';
COMMENT ON COLUMN workspace_states.files IS 'The number of captured files and symbolic links.';
COMMENT ON COLUMN workspace_states.bytes IS 'The size of the captured files. [bytes]';
COMMENT ON COLUMN workspace_states.uncaptured IS 'The number of files without content: large, unreadable, or with a name of files with credentials.';
COMMENT ON COLUMN workspace_states.changes IS 'The number of files that differ from the previous state of the session; NULL for its first state.';
COMMENT ON COLUMN workspace_states.is_stable IS 'Whether no file changed while the files were read.';
COMMENT ON COLUMN workspace_states.late IS 'Whether the response started before all files were read, so that changes of the next turn may be included. For the state at the start of a session: whether the agent started before.';
COMMENT ON COLUMN workspace_states.failure IS 'Why the files could not be read: `disk_full`, `too_large`, `no_git`, `locked`, `timeout`, `git_failed` or `unreadable`; NULL if they were read.';
COMMENT ON COLUMN workspace_states.repository IS 'The git repository of the workspace: host and path of its remote `origin`, or its directory, as a keyed digest; NULL if there is none.';
COMMENT ON COLUMN workspace_states.branch IS 'The branch, as a keyed digest; NULL if no branch is checked out.';
COMMENT ON COLUMN workspace_states.commit IS 'The ID of the commit that was checked out; NULL if there is none.';
COMMENT ON COLUMN workspace_states.dirty IS 'Whether tracked files differed from the commit, or untracked files existed; NULL if unknown.';
COMMENT ON COLUMN workspace_states.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

CREATE TABLE file_changes (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    at_ns BIGINT,
    state BIGINT,
    previous_state BIGINT,
    path VARCHAR,
    previous_path VARCHAR,
    change VARCHAR,
    previous_blob VARCHAR,
    blob VARCHAR,
    previous_mode VARCHAR,
    mode VARCHAR,
    previous_bytes BIGINT,
    bytes BIGINT,
    lines_added BIGINT,
    lines_removed BIGINT,
    tool_use_id VARCHAR,
    attempt_id VARCHAR,
    ordinal BIGINT,
    certainty VARCHAR,
    rule VARCHAR,
    candidates BIGINT,
    late BOOLEAN,
    session_sequence BIGINT
);
COMMENT ON TABLE file_changes IS 'Files that differ between two consecutive states of the workspace of a session, with the tool call that made the change.';
COMMENT ON COLUMN file_changes.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN file_changes.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN file_changes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN file_changes.interaction_id IS 'The interaction of the tool call, or NULL.';
COMMENT ON COLUMN file_changes.lane IS 'The lane of the tool call; without one, the lane of all candidates if they have one; else NULL.';
COMMENT ON COLUMN file_changes.turn IS 'The turn of the tool call within the lane, from 1; without one, the turn of all candidates if they have one; else NULL.';
COMMENT ON COLUMN file_changes.at_ns IS 'When the later state was read: the change happened before. [ns since 1970 UTC]';
COMMENT ON COLUMN file_changes.state IS 'The later state, as in workspace_states.';
COMMENT ON COLUMN file_changes.previous_state IS 'The earlier state.';
COMMENT ON COLUMN file_changes.path IS 'The path in the workspace, as a keyed digest; for a deleted file, its former path. The text is content.';
COMMENT ON COLUMN file_changes.previous_path IS 'The former path of a renamed file, as a keyed digest; else NULL.';
COMMENT ON COLUMN file_changes.change IS '`added`, `modified`, `deleted` or `renamed`.';
COMMENT ON COLUMN file_changes.previous_blob IS 'The content in the earlier state, as a keyed digest; NULL if there was none, or if it was not captured.';
COMMENT ON COLUMN file_changes.blob IS 'The content in the later state, as a keyed digest; NULL if there is none, or if it was not captured.';
COMMENT ON COLUMN file_changes.previous_mode IS 'The mode in the earlier state: `100644`, `100755` (executable) or `120000` (symbolic link); or NULL.';
COMMENT ON COLUMN file_changes.mode IS 'The mode in the later state, or NULL.';
COMMENT ON COLUMN file_changes.previous_bytes IS 'The size in the earlier state; NULL if there was no file. [bytes]';
COMMENT ON COLUMN file_changes.bytes IS 'The size in the later state; NULL if there is no file. [bytes]';
COMMENT ON COLUMN file_changes.lines_added IS 'The number of added lines; NULL for binary files and files without content.';
COMMENT ON COLUMN file_changes.lines_removed IS 'The number of removed lines; NULL for binary files and files without content.';
COMMENT ON COLUMN file_changes.tool_use_id IS 'The ID of the tool call that made the change; NULL if several calls may have made it, or none.';
COMMENT ON COLUMN file_changes.attempt_id IS 'The attempt whose response contains the tool call, or NULL.';
COMMENT ON COLUMN file_changes.ordinal IS 'The position of the tool call in its response, from 1, or NULL.';
COMMENT ON COLUMN file_changes.certainty IS '`observed`: the input of the tool call contains the new content; `inferred`: by a rule; NULL without a tool call.';
COMMENT ON COLUMN file_changes.rule IS '`content`: the input names the path and contains the change; `path`: the input names the path, and no other open call can have changed it; `only_call`: no other call was open between the two states. NULL without a tool call.';
COMMENT ON COLUMN file_changes.candidates IS 'The number of tool calls that were open between the two states, except calls of tools that only read, and calls that started sub-agents.';
COMMENT ON COLUMN file_changes.late IS 'Whether the later state was late, as in workspace_states.';
COMMENT ON COLUMN file_changes.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

-- Titles, git states and scores: the last values.

CREATE OR REPLACE VIEW latest_scores AS
SELECT
    session_id, name, lane, turn, tool_use_id, value_type, value, label, comment, source, interaction_id, at_ns,
    count(*) OVER same AS given
FROM scores
WINDOW same AS (PARTITION BY session_id, name, lane, turn, tool_use_id)
QUALIFY row_number() OVER (
    PARTITION BY session_id, name, lane, turn, tool_use_id ORDER BY at_ns DESC, segment_id DESC, sequence DESC
) = 1;
COMMENT ON VIEW latest_scores IS 'The last value of each score of a session, a turn or a tool call; `scores` has the earlier ones.';
COMMENT ON COLUMN latest_scores.session_id IS 'The ID of the session.';
COMMENT ON COLUMN latest_scores.name IS 'The name of the score.';
COMMENT ON COLUMN latest_scores.lane IS 'The lane of the turn or of the tool call; NULL for the score of a session.';
COMMENT ON COLUMN latest_scores.turn IS 'The turn within the lane, from 1; NULL for the score of a session or a tool call.';
COMMENT ON COLUMN latest_scores.tool_use_id IS 'The ID of the tool call; NULL for the score of a session or a turn.';
COMMENT ON COLUMN latest_scores.value_type IS '`number`, `boolean` or `label`.';
COMMENT ON COLUMN latest_scores.value IS 'The number; 1 or 0 for a boolean; NULL for a label.';
COMMENT ON COLUMN latest_scores.label IS 'The label; NULL for a number or a boolean.';
COMMENT ON COLUMN latest_scores.comment IS 'The comment, as a keyed digest; NULL if there is none.';
COMMENT ON COLUMN latest_scores.source IS '`program` or `command`.';
COMMENT ON COLUMN latest_scores.interaction_id IS 'The interaction, as in scores.';
COMMENT ON COLUMN latest_scores.at_ns IS 'When the score was given. [ns since 1970 UTC]';
COMMENT ON COLUMN latest_scores.given IS 'How often the score was given.';

-- The state at the start is recorded again when it is known whether there are uncommitted changes.
CREATE OR REPLACE VIEW completed_git_states AS
SELECT
    session_id,
    at_ns,
    arg_max(source, (segment_id, sequence)) AS source,
    arg_max(repository, (segment_id, sequence)) AS repository,
    arg_max(branch, (segment_id, sequence)) AS branch,
    arg_max(commit, (segment_id, sequence)) AS commit,
    arg_max(dirty, (segment_id, sequence)) AS dirty,
    arg_max(directory, (segment_id, sequence)) AS directory
FROM git_states
GROUP BY session_id, at_ns;
COMMENT ON VIEW completed_git_states IS 'One row for each time at which the git state of a session was read. A state that was completed later is one row.';
COMMENT ON COLUMN completed_git_states.session_id IS 'The ID of the session.';
COMMENT ON COLUMN completed_git_states.at_ns IS 'When the state was read. [ns since 1970 UTC]';
COMMENT ON COLUMN completed_git_states.source IS 'Who caused the reading, as in git_states.';
COMMENT ON COLUMN completed_git_states.repository IS 'The repository, as in git_states.';
COMMENT ON COLUMN completed_git_states.branch IS 'The branch, as in git_states.';
COMMENT ON COLUMN completed_git_states.commit IS 'The commit that was checked out, or NULL.';
COMMENT ON COLUMN completed_git_states.dirty IS 'Whether there were uncommitted changes; NULL if unknown.';
COMMENT ON COLUMN completed_git_states.directory IS 'The working directory of an imported session, as a keyed digest; else NULL.';

-- If a session recorded no state at its start, or its log has several states, its first state is used.
CREATE OR REPLACE VIEW session_git AS
SELECT
    session_id,
    arg_min_null(repository, (source = 'program', at_ns)) AS repository,
    arg_min_null(branch, (source = 'program', at_ns)) AS branch,
    arg_min_null(commit, (source = 'program', at_ns)) AS commit,
    arg_min_null(dirty, (source = 'program', at_ns)) AS dirty,
    arg_min_null(directory, (source = 'program', at_ns)) AS directory,
    count(*) AS states
FROM completed_git_states
GROUP BY session_id;
COMMENT ON VIEW session_git IS 'The first git state of each session in a repository.';
COMMENT ON COLUMN session_git.session_id IS 'The ID of the session.';
COMMENT ON COLUMN session_git.repository IS 'The repository, as in git_states.';
COMMENT ON COLUMN session_git.branch IS 'The branch, as in git_states.';
COMMENT ON COLUMN session_git.commit IS 'The commit that was checked out, or NULL.';
COMMENT ON COLUMN session_git.dirty IS 'Whether there were uncommitted changes; NULL if unknown.';
COMMENT ON COLUMN session_git.directory IS 'The working directory of an imported session, as a keyed digest; else NULL.';
COMMENT ON COLUMN session_git.states IS 'The number of recorded git states of the session.';

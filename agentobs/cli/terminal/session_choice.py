"""Help texts about the choice of sessions: by ID or name, and by their scores and numbers."""

SESSION_HELP = "SESSION is its ID, the start or end of the ID (4 characters or more), or its name."

WHERE_HELP = (
    "Only sessions for which all conditions hold, such as `score.correct < 0.5 and turns > 3`. A condition names a "
    "score (`score.NAME`), or status, cost_usd, turns, tool_calls, llm_requests, interactions or duration_s."
)

"""The help text about the choice of sessions by their scores and numbers."""

WHERE_HELP = (
    "Only sessions for which all conditions hold, such as `score.correct < 0.5 and turns > 3`. A condition names a "
    "score (`score.NAME`), or status, cost_usd, turns, tool_calls, llm_requests, interactions or duration_s."
)

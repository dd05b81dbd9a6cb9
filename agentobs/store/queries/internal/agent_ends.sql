-- How did each sub-agent of one session end, and after how many turns? The last end if an agent was continued.
SELECT lane, arg_max(label, at_ns) AS result, arg_max(numbers['turns'], at_ns)::BIGINT AS turns
FROM events
WHERE session_id = $session_id::VARCHAR AND kind = 'sub_agent'
GROUP BY lane
ORDER BY lane;

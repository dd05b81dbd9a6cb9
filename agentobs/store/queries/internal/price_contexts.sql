-- Which combinations that prices depend on occur in the costs?
--
-- $session_ids: only these sessions, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL.
SELECT DISTINCT model, service_tier, inference_geo, speed
FROM costs
WHERE
    ($session_ids::VARCHAR[] IS NULL OR list_contains($session_ids::VARCHAR[], session_id))
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT);

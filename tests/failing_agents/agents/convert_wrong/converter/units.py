import agentobs

MILE = 1.609344


@agentobs.record_tool
def miles_to_km(miles: float) -> float:
    return round(miles / MILE, 1)

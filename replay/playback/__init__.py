"""Playback: the replayer, which gives the agent the recorded responses."""

"""Tests of `agentobs.collector`."""

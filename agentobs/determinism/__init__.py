"""Determinism for agents that do not use the agent loop of agentobs: callers, recorded functions, patched clocks and
random numbers.
"""

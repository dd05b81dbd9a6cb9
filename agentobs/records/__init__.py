"""Frozen values that all other packages pass around. They import nothing else of agentobs."""

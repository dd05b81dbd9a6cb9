"""Frozen values that all other packages use. They import no other package of agentobs."""

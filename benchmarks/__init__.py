"""Benchmarks of agentobs; each compares a cost with a floor, the minimum cost that is measured in the same run."""

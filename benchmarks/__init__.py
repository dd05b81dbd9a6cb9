"""Benchmarks of agentobs: each cost is compared with the minimum cost (the floor) that is measured in the same run."""

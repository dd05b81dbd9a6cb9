"""Benchmarks: what recording, replaying and starting cost, each against its floor in the same run."""

"""Virtual time: waits take no real time, and keep their order."""

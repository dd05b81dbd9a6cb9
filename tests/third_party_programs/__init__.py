"""Real programs of other projects, recorded from outside and replayed as commands."""

"""Fuzzing: every external format, with mutated inputs. See CONTRIBUTING.md."""

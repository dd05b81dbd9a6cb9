"""Fuzzing: every format that comes from outside, with changed inputs. See CONTRIBUTING.md."""

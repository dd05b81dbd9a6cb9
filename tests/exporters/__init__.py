"""Tests of the exporters."""

"""Tests of observed effects."""

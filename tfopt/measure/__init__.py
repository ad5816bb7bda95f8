"""Measure variants of a job, each in its own process. No other room reads clocks."""

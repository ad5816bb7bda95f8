"""Measure: the only room that reads clocks. Every variant runs in a process of its own."""

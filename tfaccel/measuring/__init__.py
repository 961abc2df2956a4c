"""Measurements: timed windows, interleaved comparisons, and reports."""

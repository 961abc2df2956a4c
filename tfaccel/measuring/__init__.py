"""Measuring: timed windows, interleaved comparisons, and reports of both."""

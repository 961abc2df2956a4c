"""Strategies and clusters: connects a plan's devices and workers, and reports a lost worker."""

"""Finds, before the first step, losses, layers and metrics that couple the rows of a batch."""

"""Finds what couples the rows of a batch, before the first step."""

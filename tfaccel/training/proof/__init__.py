"""Proves by running it that N replicas compute a step as one device does."""

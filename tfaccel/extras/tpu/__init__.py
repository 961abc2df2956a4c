"""Checks, without a TPU, whether a train step can run on one."""

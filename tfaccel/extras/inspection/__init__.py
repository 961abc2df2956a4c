"""Inspection of data for faults before training."""

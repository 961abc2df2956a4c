"""Assesses a trained model by its training history and by simple baselines."""

"""Estimates for hardware that is not here: the speed of more workers, and of a GPU."""

"""Smaller models: quantized, pruned, clustered or distilled, and the comparison that picks one."""

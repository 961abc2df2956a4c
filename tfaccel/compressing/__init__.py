"""Smaller models: quantized, pruned, clustered or distilled, and the gate that says which of them may be used."""

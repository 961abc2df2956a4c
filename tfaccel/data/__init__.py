"""Data for training: what users pass, as datasets of global batches."""

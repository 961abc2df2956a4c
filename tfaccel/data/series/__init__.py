"""Time series: windows and their batches."""

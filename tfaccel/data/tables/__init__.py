"""Tabular datasets: columns, their encoding, and batches of rows."""

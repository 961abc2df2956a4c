"""Parity, the proof: N replicas give what plain Keras gives on one device with the same global batches."""

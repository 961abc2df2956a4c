"""The training engine: one rule, N replicas give what one device gives on the same global batch."""

"""The training engine. Its one rule: N replicas give what one device gives on the same global batch."""

"""Parity tests: N replicas must match plain Keras on one device with the same global batches.

Two layers cannot match by design and are compared with one device that processes each replica's rows separately:
dropout, which draws different masks on each replica, and batch normalization without synchronization.
"""

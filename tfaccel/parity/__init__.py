"""Parity, the proof: N replicas give what plain Keras gives on one device with the same global batches.

Two kinds of layers are exceptions by nature, and are compared with one device that treats the rows of each replica by
themselves: dropout, whose masks each replica draws for itself, and batch normalization that is not synchronized.
"""

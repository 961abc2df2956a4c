"""Fused kernels: faster operations that compute what Keras's layers and optimizers compute."""

"""Images: what is read, cached, augmented and batched."""

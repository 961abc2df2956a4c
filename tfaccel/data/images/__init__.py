"""Image datasets: reading, caching, augmentation and batching."""

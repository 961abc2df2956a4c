"""Starting training on several workers: on this machine, or on a cluster."""

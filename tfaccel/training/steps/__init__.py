"""What one training step computes: on one replica, on several, or as a whole; and the graph calls that run it."""

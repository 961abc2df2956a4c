"""What is here: the machine, its devices, its place in a cluster, and whether they work."""

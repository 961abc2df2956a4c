"""Detection of the machine, its devices and its cluster, and checks that they work."""

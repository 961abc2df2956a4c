"""Clusters that start workers: Ray, Slurm and Kubernetes."""

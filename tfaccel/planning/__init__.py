"""Plans, the rules that propose them, and the workloads they are for."""

"""Child processes: starting, messages, time limits, termination, and exit causes."""

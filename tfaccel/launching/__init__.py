"""Starting several processes on this machine as one cluster."""

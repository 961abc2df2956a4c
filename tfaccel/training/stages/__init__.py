"""Pipeline stages: a model that is cut between its layers, each part on a device of its own."""

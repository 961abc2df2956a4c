"""Tables and JSON for people and programs."""

"""The suites behind `tfaccel benchmark`, the programs that they time, and their kept results."""

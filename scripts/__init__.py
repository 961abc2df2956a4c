"""Command-line programs; `tfaccel NAME` runs `scripts/NAME.py`."""

"""The HTML report of run directories: what they hold, as sections of one self-contained page."""

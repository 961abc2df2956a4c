"""Models written for those who deploy them, and used on files."""

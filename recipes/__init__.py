"""Ready training recipes; each file is one recipe, read from top to bottom."""

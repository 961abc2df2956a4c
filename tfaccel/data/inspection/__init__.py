"""What is wrong with data, found before training."""

"""Text datasets: files, vocabularies and batches of token ids."""

"""Texts: files, vocabularies and batches of token ids."""

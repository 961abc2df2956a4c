"""Interactions of users with items: clicks or ratings from tables, encoded for large tables of embeddings."""

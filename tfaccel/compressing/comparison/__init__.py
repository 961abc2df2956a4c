"""Variants compared with the model: quality, size and speed."""

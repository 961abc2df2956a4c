"""Layers, losses and other building blocks of the recipes' models."""

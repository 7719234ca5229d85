"""Attention layers, which project states and describe a `Problem`."""

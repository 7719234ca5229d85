"""Attention layers, which project states and pose a `Problem` to solve."""

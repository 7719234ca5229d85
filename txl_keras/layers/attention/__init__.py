"""Attention layers: each projects, and says in a `Problem` what to compute."""

"""Corpora: text in three splits, loaded by name or by path."""

"""Embedding and softmax in clusters of the vocabulary."""

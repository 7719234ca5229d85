"""Adaptive embedding and adaptive softmax, by clusters of the vocabulary."""

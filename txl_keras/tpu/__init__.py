"""Ahead-of-time compilation of steps for TPU slices, without a TPU."""

"""Text generation: one token at a time, from cached keys and values."""

"""Memory of earlier segments: hidden states, or keys and values."""

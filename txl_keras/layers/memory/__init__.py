"""What a model remembers: hidden states, or keys and values."""

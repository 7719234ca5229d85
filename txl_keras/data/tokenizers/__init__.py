"""Tokenizers: text to integer ids and back; `txl_keras.data` exports them."""

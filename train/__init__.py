"""The scripts, installed as `txl_keras.train`; `txl` runs them."""

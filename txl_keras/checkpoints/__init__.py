"""Loaders of published checkpoints and vocabularies; no code is executed."""

# Import of published weights, and export.
from txl_keras.checkpoints.hugging_face import load_hugging_face
from txl_keras.checkpoints.hugging_face import load_with_tokenizer
from txl_keras.checkpoints.hugging_face import save_hugging_face
from txl_keras.checkpoints.hugging_face_xlnet import load_hugging_face_xlnet
from txl_keras.checkpoints.pytorch import load_pytorch
from txl_keras.checkpoints.tf1 import load_tf1

# Vocabularies of published models.
from txl_keras.checkpoints.vocabularies import load_vocabulary
from txl_keras.extending import register

# Loaders that `from_preset` uses for Hugging Face folders.
register(
    "hugging_face",
    transfo_xl=load_with_tokenizer,
    xlnet=lambda *args, **kwargs: (
        load_hugging_face_xlnet(*args, **kwargs),
        lambda: None,
    ),
)

__all__ = [
    "load_hugging_face",
    "load_hugging_face_xlnet",
    "load_pytorch",
    "load_tf1",
    "load_vocabulary",
    "save_hugging_face",
]

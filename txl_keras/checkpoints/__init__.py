"""Checkpoints: published models and their vocabularies, read safely."""

# Published weights to models of ours, and back.
from txl_keras.checkpoints.hugging_face import load_hugging_face
from txl_keras.checkpoints.hugging_face import save_hugging_face
from txl_keras.checkpoints.hugging_face_xlnet import load_hugging_face_xlnet
from txl_keras.checkpoints.pytorch import load_pytorch
from txl_keras.checkpoints.tf1 import load_tf1

# The words that their ids stand for.
from txl_keras.checkpoints.vocabularies import load_vocabulary

__all__ = [
    "load_hugging_face",
    "load_hugging_face_xlnet",
    "load_pytorch",
    "load_tf1",
    "load_vocabulary",
    "save_hugging_face",
]

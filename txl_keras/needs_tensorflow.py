"""Raises if Keras has another backend, for parts that need TensorFlow."""

import os

backend = os.environ.get("KERAS_BACKEND")
if not backend:
    import keras  # reads its own settings, too

    backend = keras.backend.backend()
if backend != "tensorflow":
    raise ImportError(
        "`txl_keras.training`, `evaluation`, `serving` and `extensions`, "
        "`BackupAndRestore` and the commands of `txl` need the TensorFlow "
        "backend of Keras; layers, models and samplers run on the others, too. "
        "Set KERAS_BACKEND=tensorflow in the "
        f"environment, before `import keras`. Received: KERAS_BACKEND={backend}"
    )

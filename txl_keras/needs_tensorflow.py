"""Refuses other backends of Keras, on which only `txl_keras.layers` run."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "txl_keras needs the TensorFlow backend of Keras, except for "
        "`txl_keras.layers`. Set KERAS_BACKEND=tensorflow in the environment, "
        "before `import keras`. Received: KERAS_BACKEND="
        f"{keras.backend.backend()}"
    )

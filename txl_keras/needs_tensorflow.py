"""Refuses other backends of Keras, on which only layers and samplers run."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "txl_keras needs the TensorFlow backend of Keras, except for "
        "`txl_keras.layers` and `txl_keras.samplers`. Set "
        "KERAS_BACKEND=tensorflow in the environment, before `import keras`. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}"
    )

"""SavedModels that need nothing but TensorFlow.

Letters: `B` batch, `T` segment, `M` memory, `D` hidden size, `L` layers,
`V` vocabulary.
"""

import os

import keras
import tensorflow as tf

from txl_keras.layers.memory_stack import Memory


def export(model, path, memory_length=None):
    """Writes a language model as a SavedModel, memory in and memory out.

    Signatures, with `B` and `T` free:

    - `serving_default(ids, memory, valid_length)` -> `log_probs`, `memory`,
      `valid_length`: int32 `(B, T)`, float32 `(B, L, M, D)` and int32 `(B,)`
      in, float32 `(B, T, V)` and the memory to pass next time out. The batch
      comes first everywhere, so that servers can batch requests.
    - `initial_memory(batch_size)` -> `memory`, `valid_length`: int32 scalar
      in, the memory of a cold start out.

    Build the model outside of any `tf.distribute` strategy.

    Args:
        model: `TransformerXLCausalLM`.
        path: String, a new folder, or that of an older SavedModel; local or
            `gs://`.
        memory_length: Optional integer `M`; by default the model's own.

    Raises:
        ValueError: If `path` is something else than a SavedModel.
    """
    if tf.io.gfile.exists(path) and not _is_saved_model(path):
        raise ValueError(
            "`path` must be new or a SavedModel, which is then replaced. "
            f"Received: path={path}"
        )
    backbone = model.backbone
    if memory_length is None:
        memory_length = backbone.memory_length

    def serve(ids, memory, valid_length):
        states = tf.unstack(memory, backbone.num_layers, axis=1)
        log_probs, new = model.log_probs(
            ids,
            Memory(
                tuple(tf.cast(s, model.compute_dtype) for s in states),
                valid_length,
            ),
        )
        return {"log_probs": log_probs, **_tensors(new)}

    def initial_memory(batch_size):
        return _tensors(model.initial_memory(batch_size, memory_length))

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serving_default",
        serve,
        [
            tf.TensorSpec((None, None), tf.int32, "ids"),
            tf.TensorSpec(
                (None, backbone.num_layers, memory_length, backbone.hidden_dim),
                tf.float32,
                "memory",
            ),
            tf.TensorSpec((None,), tf.int32, "valid_length"),
        ],
    )
    archive.add_endpoint(
        "initial_memory",
        initial_memory,
        [tf.TensorSpec((), tf.int32, "batch_size")],
    )
    # Written beside it, so that a server never sees half a model.
    unfinished = os.path.normpath(path) + ".unfinished"
    if tf.io.gfile.exists(unfinished):
        tf.io.gfile.rmtree(unfinished)
    archive.write_out(unfinished, verbose=False)
    if tf.io.gfile.exists(path):
        tf.io.gfile.rmtree(path)
    tf.io.gfile.rename(unfinished, path)


def _is_saved_model(path):
    return tf.io.gfile.exists(os.path.join(path, "saved_model.pb"))


def _tensors(memory):
    return {
        "memory": tf.cast(tf.stack(memory.states, axis=1), tf.float32),
        "valid_length": memory.valid_length,
    }

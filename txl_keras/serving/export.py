"""SavedModels that need nothing but TensorFlow.

Letters: `B` batch, `T` segment, `P` prompt, `M` memory, `D` hidden size, `N`
heads, `H` head size, `L` layers, `V` vocabulary, `W` tokens to write.
"""

import functools

import numpy as np

from txl_keras.checks import check_integer
from txl_keras.checks import check_vocabulary
from txl_keras.serving.graph_tokenizers import graph_tokenizer
from txl_keras.serving.saved_models import check_path
from txl_keras.serving.saved_models import write_saved_model
from txl_keras.serving.signatures import MAX_BATCH_SIZE
from txl_keras.serving.signatures import MAX_GENERATE_LENGTH
from txl_keras.serving.signatures import FunctionalSignatures
from txl_keras.serving.signatures import Reader
from txl_keras.serving.slots import Slots
from txl_keras.serving.text_signatures import TextSignatures

WEIGHTS_DTYPES = ("float32", "bfloat16")
_SEGMENT_LENGTH = 512
# Positions are projected for as many distances, and scores take its square.
LONGEST_SEGMENT = 1 << 16


def export(
    model,
    path,
    memory_length=None,
    max_segment_length=None,
    num_slots=8,
    weights_dtype="float32",
    settings=None,
    assets=None,
    max_batch_size=MAX_BATCH_SIZE,
    max_generate_length=MAX_GENERATE_LENGTH,
):
    """Writes a language model as a SavedModel: the folder of one version.

    TensorFlow Serving looks for `NAME/VERSION/`, the version an integer. The
    memory of clients is `memory`, float32 `(B, L, 2, N, M, H)`, the projected
    keys and values in the order of the text, so that no call projects the
    past again, and `valid_length`, int32 `(B,)`, how many of the M are real.
    Both come out of every call as they go into the next; in the table below
    `...` stands for them. All sizes but those of the model are free; the batch
    comes first, so that servers can batch requests.

    | signature | in | out |
    |---|---|---|
    | `serving_default` | `ids` `(B, T)`, ... | `log_probs` `(B, T, V)`, ... |
    | `initial_memory` | `batch_size` | ... of a cold start |
    | `score` | `ids`, `targets` `(B, T)`, ... | `nll` `(B, T)`, ... |
    | `hidden_states` | `ids`, ... | `hidden_states` `(B, T, D)`, ... |
    | `generate` | `prompt_ids` `(B, P)`, `prompt_length` `(B,)`, ..., \
`length` W, `seed`, `temperature`, `top_k`, `top_p`, `typical_p`, \
`repetition_penalty` | `ids` `(B, W)`, ... |
    | `step` | `ids` `(B, T)`, `slots` `(B,)` | `log_probs` `(B, V)` |
    | `reset` | `slots` `(B,)` | `slots` |

    Integers are int32, all else is float32. Of larger Python numbers TensorFlow
    takes the lowest 32 bits before the model sees them.

    - `generate` pads prompts of different lengths on the right, draws row r
      as if it were alone, and reads all but the last token it writes: to go
      on, pass that as the next prompt. The sampling parameters are those of
      `Sampler` (`top_k` 0 keeps all). Servers have defaults for those after
      `length`, and so has `tf.saved_model.load(path).generate`; entries of
      `.signatures` take every parameter by its name.
    - `step` and `reset` keep the memory in numbered slots inside the server,
      where it is lost when that ends. `step` returns what comes after the
      last token. Calls for different slots may run at the same time, not so
      two for the same slot. Slots are empty when the model is loaded.

    Whatever cannot be is refused with `InvalidArgument`, before any slot is
    written. Models of absolute positions have M = 0 and neither `generate` nor
    slots. Build the model outside of any `tf.distribute` strategy.

    Files for clients lie in `assets/`.

    Args:
        model: `TransformerXLCausalLM`.
        path: String, a new folder, or that of an older SavedModel, which is
            replaced; local, or of any file system that TensorFlow knows.
        memory_length: Optional integer `M`; by default the model's own.
        max_segment_length: Optional integer, the longest T, up to 65,536; by
            default 512, or as many as the model has absolute positions.
            Relative ones are projected for M + T distances (no more than
            `clamp_length` needs).
        num_slots: Integer; 0 leaves `step` and `reset` out.
        weights_dtype: String. `"bfloat16"` stores weights of float32 in half
            the space; they are float32 again for the time of a call, so that
            every call has to convert them first.
        settings: Optional dictionary that JSON can hold, added to
            `settings.json`: what the model and the SavedModel are. It must
            not have a key that the export writes itself.
        assets: Optional dictionary of file names to paths of files to be
            copied, such as the tokenizer.
        max_batch_size: Integer, the largest B of a request. It bounds the
            memory that a stranger's request takes: `log_probs` has `B * T * V`
            numbers.
        max_generate_length: Integer, the largest W of a request: it bounds
            the time.

    Raises:
        ValueError: If `path` is something else than a SavedModel, an argument
            is out of its range, or `settings` or `assets` have names that the
            export writes itself.

    Example:

    ```python
    import tempfile
    import tensorflow as tf
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.serving import export

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    path = tempfile.mkdtemp() + "/quickstart/1"
    export(model, path, memory_length=16, num_slots=0)

    loaded = tf.saved_model.load(path)
    start = loaded.signatures["initial_memory"]
    predict = loaded.signatures["serving_default"]
    memory = start(batch_size=tf.constant(1))
    for ids in ([[72, 105]], [[33]]):
        memory = predict(ids=tf.constant(ids), **memory)
        log_probs = memory.pop("log_probs")  # (1, T, V)
    ```
    """
    check_integer("num_slots", num_slots, 0)
    reader = _reader(
        model,
        path,
        memory_length,
        max_segment_length,
        weights_dtype,
        max_batch_size,
        max_generate_length,
    )
    if not reader.remembers:
        num_slots = 0
    endpoints = FunctionalSignatures(reader).endpoints()
    tracked = []
    if num_slots:
        tracked = [Slots(reader, num_slots)]
        endpoints.update(tracked[0].endpoints())
    own_settings = {"num_slots": num_slots}
    _write(path, reader, endpoints, tracked, own_settings, settings, assets)


def export_text(
    model,
    tokenizer,
    path,
    memory_length=None,
    max_segment_length=None,
    weights_dtype="float32",
    settings=None,
    assets=None,
    max_batch_size=MAX_BATCH_SIZE,
    max_generate_length=MAX_GENERATE_LENGTH,
):
    """Writes a language model as a SavedModel that takes raw text.

    | signature | in | out |
    |---|---|---|
    | `score_text` | `text` `(B,)` | `nll` `(B,)`, `token_nll` `(B, P)`, \
`ids` `(B, P)`, `lengths` `(B,)` |
    | `generate_text` | `prompt` `(B,)`, `length` W, `seed` and the \
parameters of `Sampler` | `text` `(B,)`, `ids` `(B, W)` |

    `serving_default` is `score_text`.

    Texts are read from a cold start, each as if it were alone. The first token
    of a text has nothing to be predicted from, and a score of 0; `nll` is the
    sum of the others, in nats. `text` of a prompt is what comes after it.

    `tf.saved_model.load(path).generate_text` has defaults for the parameters
    after `length`, as servers do. Texts and prompts may have any length.

    The tokenizer is inside. Bytes, characters and words need TensorFlow alone.
    Subwords need `import tensorflow_text` before the model is loaded: without
    it TensorFlow says `Op type not registered 'SentencepieceOp'`.

    Args:
        model: `TransformerXLCausalLM`.
        tokenizer: Its tokenizer.
        path, memory_length, max_segment_length, weights_dtype, settings,
            assets, max_batch_size, max_generate_length: See `export`. Texts
            are read in segments of `max_segment_length`, prompts of at most
            128.

    Raises:
        ValueError: As `export`; and if the tokenizer is not that of the model
            or cannot be brought into a graph, or positions are absolute.

    Example:

    ```python
    import tempfile
    import tensorflow as tf
    from txl_keras.data import ByteTokenizer
    from txl_keras.models import TransformerXLCausalLM
    from txl_keras.serving import export_text

    model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
    path = tempfile.mkdtemp() + "/quickstart_text/1"
    export_text(model, ByteTokenizer(), path)

    loaded = tf.saved_model.load(path)
    scores = loaded.signatures["score_text"](text=tf.constant(["to be"]))
    ```
    """
    check_vocabulary(tokenizer, model.backbone.vocabulary_size)
    reader = _reader(
        model,
        path,
        memory_length,
        max_segment_length,
        weights_dtype,
        max_batch_size,
        max_generate_length,
    )
    model.backbone.check_takes_padding()
    inside = graph_tokenizer(tokenizer)
    endpoints = TextSignatures(reader, inside).endpoints()
    own_settings = {"tokenizer": type(tokenizer).__name__}
    _write(path, reader, endpoints, [inside], own_settings, settings, assets)


def _reader(
    model,
    path,
    memory_length,
    max_segment_length,
    weights_dtype,
    max_batch_size,
    max_generate_length,
):
    check_path(path)
    if not model.backbone.has_attention:
        raise ValueError(
            "`model` must have a TransformerXLBackbone to be exported. "
            f"Received: {type(model.backbone).__name__}"
        )
    if memory_length is None:
        memory_length = model.backbone.memory_length
    check_integer("memory_length", memory_length, 0)
    model.backbone.check_remembers(memory_length)
    max_segment_length = _checked_segment_length(
        model.backbone, max_segment_length
    )
    if weights_dtype not in WEIGHTS_DTYPES:
        raise ValueError(
            f"`weights_dtype` must be one of {WEIGHTS_DTYPES}. "
            f"Received: weights_dtype={weights_dtype!r}"
        )
    largest = np.iinfo(np.int32).max
    check_integer("max_batch_size", max_batch_size, 1, largest)
    check_integer("max_generate_length", max_generate_length, 1, largest)
    return Reader(
        model,
        memory_length,
        max_segment_length,
        weights_dtype,
        max_batch_size,
        max_generate_length,
    )


def _write(path, reader, endpoints, tracked, own_settings, settings, assets):
    endpoints = {
        name: (_with_weights(reader, function), specs)
        for name, (function, specs) in endpoints.items()
    }
    own_settings = {
        "model": reader.model.get_config(),
        "memory_length": reader.memory_length,
        "memory_shape": reader.memory_shape,
        "max_segment_length": reader.max_segment_length,
        "weights_dtype": reader.weights_dtype,
        "max_batch_size": reader.max_batch_size,
        "max_generate_length": reader.max_generate_length,
        **own_settings,
    }
    write_saved_model(path, endpoints, tracked, own_settings, settings, assets)


def _checked_segment_length(backbone, max_segment_length):
    longest = backbone.max_segment_length
    if max_segment_length is None:
        return min(_SEGMENT_LENGTH, longest or _SEGMENT_LENGTH)
    check_integer("max_segment_length", max_segment_length, 1, LONGEST_SEGMENT)
    if longest is not None and max_segment_length > longest:
        raise ValueError(
            "`max_segment_length` must not be larger than the model's "
            f"`max_positions`, {longest}. "
            f"Received: max_segment_length={max_segment_length}"
        )
    return max_segment_length


def _with_weights(reader, function):
    @functools.wraps(function)
    def call(*args):
        with reader.weights():
            return function(*args)

    return call

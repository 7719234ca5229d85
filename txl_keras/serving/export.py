"""Export of language models as SavedModels that need only TensorFlow.

More letters: `P` prompt or longest text, `W` tokens to generate.
"""

import keras

from txl_keras.checks import check_integer
from txl_keras.checks import check_vocabulary
from txl_keras.data.tokenizers.tokenizer import Tokenizer
from txl_keras.serving.export_folders import check_path
from txl_keras.serving.export_folders import write_saved_model
from txl_keras.serving.graph_tokenizers import GraphTokenizer
from txl_keras.serving.served_model import MAX_BATCH_SIZE
from txl_keras.serving.served_model import MAX_GENERATE_LENGTH
from txl_keras.serving.served_model import SAMPLING
from txl_keras.serving.served_model import ServedModel
from txl_keras.serving.slots import Slots
from txl_keras.types import PathLike


def export(
    model: keras.Model,
    path: PathLike,
    tokenizer: Tokenizer | None = None,
    memory_length: int | None = None,
    max_segment_length: int | None = None,
    num_slots: int = 8,
    settings: dict | None = None,
    assets: dict | None = None,
    max_batch_size: int = MAX_BATCH_SIZE,
    max_generate_length: int = MAX_GENERATE_LENGTH,
) -> None:
    """Exports a language model as a SavedModel.

    TensorFlow Serving expects the path `NAME/VERSION/`, where the version is
    an integer.

    The signatures are stateless, except for `step` and `reset`. Memory
    consists of two tensors. `memory`, float32 `(B, L, 2, N, M, H)`, holds the
    projected keys and values in the order of the text, so that no call
    projects the past again. `valid_length`, int32 `(B,)`, is the number of
    valid entries among the M. A client passes both tensors from the outputs of
    one call to the inputs of the next call; `...` stands for them in the table
    below. All sizes except the model's are free. The batch is the first axis,
    so servers can batch requests.

    The memory of another backbone may consist of more tensors: see the outputs
    of `initial_memory`.

    | signature | in | out |
    |---|---|---|
    | `serving_default` | `ids` `(B, T)`, ... | `log_probs` `(B, T, V)`, ... |
    | `initial_memory` | `batch_size` | ... |
    | `score` | `ids`, `targets` `(B, T)`, ... | `nll` `(B, T)`, ... |
    | `hidden_states` | `ids`, ... | `hidden_states` `(B, T, D)`, ... |
    | `generate` | `prompt_ids` `(B, P)`, `prompt_length` `(B,)`, ..., \
`length` W, `seed`, `temperature`, `top_k`, `top_p`, \
`repetition_penalty` | `ids` `(B, W)`, ... |
    | `step` | `ids` `(B, T)`, `slots` `(B,)` | `log_probs` `(B, V)` |
    | `reset` | `slots` `(B,)` | `slots` |

    Other integers are int32; all other tensors are float32. TensorFlow keeps
    only the lowest 32 bits of larger Python integers before the model receives
    them. `generate` takes prompts padded on the right. It does not read the
    last token that it returns: pass this token as the next prompt. Its sampling
    parameters are described in `Sampler`; they have defaults on a server and in
    `tf.saved_model.load(path).generate`. `step` and `reset` keep memory in
    numbered slots of the server; concurrent calls must use different slots.
    Invalid inputs raise `InvalidArgument` before any slot changes. Models with
    absolute positions have M = 0, no `generate` and no slots.

    With a `tokenizer`, the signatures take raw text instead. `serving_default`
    is `score_text`.

    | signature | in | out |
    |---|---|---|
    | `score_text` | `text` `(B,)` | `nll` `(B,)`, `token_nll` `(B, P)`, \
`ids` `(B, P)`, `lengths` `(B,)` |
    | `generate_text` | `prompt` `(B,)`, `length` W, `seed` and the \
parameters of `Sampler` | `text` `(B,)`, `ids` `(B, W)` |

    Each text starts from the initial memory and may have any length. The first
    token has no context, so its `token_nll` is 0. The `text` of `generate_text`
    does not include the prompt. Subword tokenizers need `import
    tensorflow_text` before the model is loaded.

    The folder `assets/` holds files for clients.

    Args:
        model: `TransformerXLCausalLM`.
        path: String or `pathlib.Path`, a new folder, or an earlier export,
            which is replaced; local, or of any file system that TensorFlow
            supports.
        tokenizer: Optional tokenizer of the model, for signatures of raw text,
            such as `signatures["score_text"](text=tf.constant(["to be"]))`.
        memory_length: Optional integer `M`; by default the model's own. A model
            without memory needs it; 0 is allowed, and generates from the last
            token alone.
        max_segment_length: Optional integer, the longest T, up to 65,536; by
            default 512, or the model's number of absolute positions.
        num_slots: Integer; 0 omits `step` and `reset`, and so does a
            `tokenizer`.
        settings: Optional dictionary of JSON values, added to the description
            of the model in `assets/settings.json`.
        assets: Optional dictionary from file names to paths of files to copy
            to `assets/`, such as the tokenizer.
        max_batch_size: Integer, the largest B of a request, which limits its
            memory: `log_probs` has `B * T * V` numbers.
        max_generate_length: Integer, the largest W of a request, which limits
            its time.

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
    path = check_path(path)
    check_integer("num_slots", num_slots, 0)
    served = ServedModel(
        model,
        memory_length,
        max_segment_length,
        max_batch_size,
        max_generate_length,
    )
    encoder, resources = None, []
    if tokenizer is not None:
        check_vocabulary(tokenizer, model.backbone.vocabulary_size)
        model.backbone.check_takes_padding()
        encoder = GraphTokenizer(tokenizer)
        own, resources = {"tokenizer": type(tokenizer).__name__}, [encoder]
    endpoints = served.endpoints(encoder)
    if tokenizer is None:
        num_slots = num_slots if served.backbone.remembers else 0
        own = {"num_slots": num_slots}
        if num_slots:
            resources = [Slots(served, num_slots)]
            endpoints |= resources[0].endpoints()
    write_saved_model(
        path,
        endpoints,
        resources,
        {**served.settings, **own},
        settings,
        assets,
        SAMPLING,
    )

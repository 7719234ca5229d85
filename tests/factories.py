"""Models small enough to run in a moment, random enough to show a mix-up.

Sizes differ, so that swapped axes fail.
"""

import json
import random

import keras
import numpy as np
import safetensors.numpy

from txl_keras.data import ByteTokenizer
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM
from txl_keras.samplers.sampler import NO_EFFECT
from txl_keras.weights import weights_by_name

V, D, L, M, N, H, F = 11, 8, 3, 6, 2, 5, 12
TIES = ("tie_embeddings", "tie_projections")


def seed_weights(seed):
    """Seeds what draws the initial weights, and NumPy.

    `keras.utils.set_random_seed` also seeds TensorFlow's own generator, which
    makes TensorFlow look up its kernels again.
    """
    random.seed(seed)
    np.random.seed(seed)


def small_backbone(dtype=None, make=TransformerXLBackbone, **config):
    """Backbone of class `make`, with large weights."""
    sizes = {
        "vocabulary_size": V,
        "num_layers": L,
        "hidden_dim": D,
        "initializer_stddev": 0.3,
    }
    if make is not LSTMBackbone:
        sizes |= {
            "num_heads": N,
            "head_dim": H,
            "intermediate_dim": F,
            "memory_length": M,
        }
    return make(dtype=dtype, **{**sizes, **config})


def feature_backbone(make=TransformerXLBackbone, **config):
    """Backbone of vectors `(B, T, 16)` with a memory of 6, equal every time."""
    seed_weights(3)
    sizes = {
        "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "head_dim": 6,
        "intermediate_dim": 20, "memory_length": 6, "initializer_stddev": 0.4,
    }  # fmt: skip
    return make(None, **{**sizes, **config})


def small_model(dtype=None, make=TransformerXLBackbone, **config):
    """Language model of a small backbone, with random biases too."""
    ties = {name: config.pop(name) for name in TIES if name in config}
    head = (
        XLNetPermutationLM if make is XLNetBackbone else TransformerXLCausalLM
    )
    model = head(small_backbone(dtype, make, **config), **ties)
    rng = np.random.default_rng(4)
    for bias in model.softmax.biases:
        bias.assign(rng.normal(size=bias.shape))
    return model


def byte_model(**config):
    """Language model of one block that reads bytes."""
    model = small_model(vocabulary_size=256, num_layers=1, **config)
    model.tokenizer = ByteTokenizer()
    return model


def rewinder(model):
    """Returns a function that sets a compiled model back to its present state.

    Tests that share a model share the seconds of compiling its step, too.
    """
    model.optimizer.build(model.trainable_variables)
    assign = _assigner([*model.weights, *model.optimizer.variables])

    def rewind():
        assign()
        model.reset_memory()
        if model.fit_steps.trainer:
            model.fit_steps.trainer.step.assign(0)
        return model

    return rewind


def trainer_rewinder(trainer):
    """Returns a function that sets a `Trainer` back to its present state."""
    variables = [
        *trainer.model.weights,
        *trainer.optimizer.variables,
        *trainer.memory.state_variables,
        trainer.step,
    ]
    if trainer.loss_scale:
        variables += trainer.loss_scale.value, trainer.loss_scale.good_steps
    assign, seed = _assigner(variables), trainer.seed

    def rewind():
        assign()
        trainer.seed = seed
        return trainer

    return rewind


def _assigner(variables):
    """Returns a function that gives variables their present values again."""
    values = [np.array(variable) for variable in variables]

    def assign():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    return assign


def assert_same(found, expected, atol=0.0):
    """Asserts that sequences of arrays are equal, or within `atol`."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def read_in_parts(function, lengths, memory=None, **inputs):
    """Outputs of segments of these lengths in a text, and the last memory."""
    outputs, ends = [], np.cumsum(lengths)
    for start, end in zip(ends - lengths, ends, strict=True):
        part = {name: x[:, start:end] for name, x in inputs.items()}
        output, memory = function(memory=memory, **part)
        outputs.append(output)
    return np.concatenate(outputs, axis=1), memory


def rows_of(memory, rows):
    """The memory of some rows of a batch, a slice."""
    return keras.tree.map_structure(
        lambda x: None if x is None else x[rows], memory
    )


def tensors_of(path):
    """The tensors of a checkpoint by their names."""
    return safetensors.numpy.load_file(f"{path}.safetensors")


def save_tensors(tensors, path):
    """Writes a checkpoint of tensors by their names."""
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    safetensors.numpy.save_file(arrays, f"{path}.safetensors")


def as_tensors(parameters):
    """Parameters of a sampler, with those without effect, as tensors."""
    return {
        name: keras.ops.array(value, "int32" if name == "top_k" else "float32")
        for name, value in {**NO_EFFECT, **parameters}.items()
    }


def change_json(path, changes):
    """Changes fields of a JSON file, named by their paths; `...` removes."""
    content = json.loads(path.read_text())
    for field, value in changes.items():
        *parents, last = field.split(".")
        at = content
        for parent in parents:
            at = at[parent]
        at[last] = value
        if value is ...:
            del at[last]
    path.write_text(json.dumps(content))


def random_ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(V, size=shape, dtype="int32")


def save_run(path, model, step, tokenizer=None, best=None, **config):
    """Run with a checkpoint, and the best weights: by default the same."""
    from txl_keras.training.checkpointing import copies
    from txl_keras.workdir import Workdir

    workdir = Workdir(str(path))
    content = {
        "flags": {},
        "data": {},
        "corpus": {},
        **config,
        "class_name": type(model).__name__,
        "model": {**model.get_config(), "tokenizer": None},
        "tokenizer": tokenizer and tokenizer_hash(tokenizer),
    }
    del content["model"]["tokenizer"]
    workdir.claim(content, tokenizer)
    save_checkpoint(workdir.checkpoints, model, step, workdir.run_hash())
    best, step = best or (model, step)
    workdir.save_best(copies(weights_by_name(best)), step)
    return workdir


def save_checkpoint(folder, model, step, run=0):
    """Writes a checkpoint of the weights alone."""
    from txl_keras.training.checkpointing import copies
    from txl_keras.training.checkpointing import weight_variables
    from txl_keras.training.checkpointing import write_checkpoint

    state = {"step": np.int64(step), "run": np.int64(run)}
    write_checkpoint(folder, {**state, **copies(weight_variables(model))})

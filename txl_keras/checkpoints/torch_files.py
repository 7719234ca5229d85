"""Files that PyTorch wrote, read without running anything in them.

They are pickles. PyTorch's own `weights_only` unpickler reads them: it knows
tensors and plain containers, and stops at any other name. For checkpoints that
hold objects of the original code, the names listed here lead to an inert
record; no code of theirs is imported or called.
"""

import itertools
import pickle
import re
import zipfile

from txl_keras.checkpoints.layout import Tensors

_NAMES = [
    "argparse.Namespace",
    *(
        ".".join(parts)
        for parts in itertools.product(
            ("utils.vocabulary", "vocabulary"), ("Vocab", "OpenAIVocab")
        )
    ),
    *(
        f"mem_transformer.{name}"
        for name in (
            "AdaptiveEmbedding",
            "DecoderLayer",
            "MemTransformerLM",
            "MultiHeadAttn",
            "PositionalEmbedding",
            "PositionwiseFF",
            "RelLearnableDecoderLayer",
            "RelLearnableMultiHeadAttn",
            "RelPartialLearnableDecoderLayer",
            "RelPartialLearnableMultiHeadAttn",
        )
    ),
    "proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax",
    "utils.proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax",
    *(
        f"torch.nn.modules.{name}"
        for name in (
            "activation.ReLU",
            "container.ModuleList",
            "container.ParameterList",
            "container.Sequential",
            "dropout.Dropout",
            "linear.Linear",
            "normalization.LayerNorm",
            "sparse.Embedding",
        )
    ),
    "torch.nn.parallel.data_parallel.DataParallel",
    "torch.nn.backends.thnn._get_thnn_function_backend",  # before 1.3
]


class _Record:
    """What stands for an object: its state, and nothing that can be called."""

    __slots__ = ("state",)

    def __new__(cls, *args, **kwargs):
        record = super().__new__(cls)
        record.state = {}
        return record

    def __setstate__(self, state):
        self.state = state


def load_torch(path):
    """What `torch.save` wrote to a file.

    Args:
        path: String or path.

    Returns:
        Tensors in plain containers; a whole module is its state dict, and
        another object of the original code an inert record.

    Raises:
        ImportError: If PyTorch is not installed, or before 2.6.
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, or names anything else; then nothing in
            it was run.
    """
    torch = _import_torch()
    path = str(path)
    records = [(_Record, name) for name in _NAMES]
    with open(path, "rb"):
        pass  # what is no file is no damaged file
    try:
        with torch.serialization.safe_globals(records):
            loaded = torch.load(
                path,
                map_location="cpu",
                weights_only=True,
                mmap=zipfile.is_zipfile(path),  # older files cannot be mapped
            )
        return _state_dict(loaded) if isinstance(loaded, _Record) else loaded
    except pickle.UnpicklingError as error:
        # Not chained: PyTorch's message recommends to run the file.
        raise ValueError(_refusal(path, error)) from None
    except Exception as error:
        # Damage shows as almost any exception.
        raise ValueError(
            f"{path} cannot be read; it is damaged, cut short, or no file of "
            f"PyTorch: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _import_torch():
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "Files of PyTorch are read with PyTorch; a build for the CPU is "
            "enough: `pip install -e '.[convert]'` in the folder of txl_keras."
        ) from error
    if torch.__version__ < (2, 6):
        raise ImportError(
            "PyTorch must be 2.6 or later: a file could make earlier ones run "
            "code even so (CVE-2025-32434). Received: torch.__version__="
            f"{torch.__version__}"
        )
    return torch


def _refusal(path, error):
    named = re.search(r"GLOBAL (\S+)", str(error))
    reason = "it is damaged, or a whole model from before PyTorch 1.6"
    if named is not None:
        name = named[1].rstrip(".")
        reason = f"it names `{name}`, which no Transformer-XL needs"
    return (
        f"{path} was refused: {reason}. Nothing in it was run. Of a model that "
        "you trust, save the tensors alone: "
        "`torch.save(model.state_dict(), path)`."
    )


def _first_line(error):
    return str(error).strip().split("\n")[0]


def _state_dict(module):
    """The tensors of a module that was saved whole, by name."""
    state = module.state
    tensors = {**state["_parameters"], **state["_buffers"]}
    for name, child in state["_modules"].items():
        if child is not None:
            tensors |= {
                f"{name}.{inner}": tensor
                for inner, tensor in _state_dict(child).items()
            }
    return {name: t for name, t in tensors.items() if t is not None}


def torch_tensors(state, source):
    """The tensors of a state dict.

    Args:
        state: Dictionary from name to PyTorch tensor.
        source: What to call it in an error.

    Returns:
        `Tensors`. A prefix `module.`, of `DataParallel`, is taken off.

    Raises:
        ValueError: If there is anything but tensors.
    """
    torch = _import_torch()
    if not isinstance(state, dict) or not all(
        isinstance(tensor, torch.Tensor) for tensor in state.values()
    ):
        kinds = type(state).__name__
        if isinstance(state, dict):
            kinds = sorted({type(value).__name__ for value in state.values()})
        raise ValueError(
            f"{source} must hold a state dict: tensors by name. "
            f"Received: {kinds}"
        )
    tensors = Tensors(
        {name: tensor.shape for name, tensor in state.items()},
        lambda name: state[name].detach().float().numpy(),
    )
    if all(name.startswith("module.") for name in tensors):
        tensors = tensors.renamed(lambda name: name.removeprefix("module."))
    return tensors

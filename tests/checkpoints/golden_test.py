"""Numbers of the original codes: see `testdata/golden`.

Tiny random models, whose weights and outputs were stored by the original
implementation in TensorFlow 1 and PyTorch, and by Hugging Face's; those of
`shaw`, `al_rfou`, `vaswani` and `nvidia` by a reference of our own. Outputs
are those of several segments, memory that of the last.
"""

import math

import keras
import numpy as np
import pytest
import safetensors.numpy
from backends import differentiated
from factories import read_in_parts
from stored_models import GOLDEN
from stored_models import check_memory
from stored_models import load_arrays
from stored_models import save_torch
from stored_models import segments
from stored_models import stored_arrays
from stored_models import stored_config

from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import load_pytorch
from txl_keras.checkpoints import load_tf1

pytestmark = pytest.mark.every_backend


def outputs(name):
    return np.load(GOLDEN / name / "golden.npz")


def score_with_mean(model):
    def score(inputs, targets, memory):
        nll, memory = model.score(inputs, targets, memory)
        return keras.ops.mean(nll), nll, memory

    return score


def check_scores(model, name):
    """Compares nll and memory over all segments with the stored ones.

    And the norms of gradients, where they are stored. `segment_reader_test`
    compares what evaluation reads, projected memory, with `model.score`.
    """
    golden = outputs(name)
    memory = None
    run = differentiated(score_with_mean(model), model.trainable_weights)
    batches = segments(golden["tokens"], golden["nll"].shape[1])
    norms = golden.get("grad_norm", [None] * len(golden["nll"]))
    for (inputs, targets), nll, norm in zip(
        batches, golden["nll"], norms, strict=True
    ):
        if norm is None:
            ours, memory = model.score(inputs, targets, memory)
        else:
            (_, ours, memory), by_weights = run(inputs, targets, memory)
            our_norm = math.hypot(*map(np.linalg.norm, by_weights))
            np.testing.assert_allclose(our_norm, norm, rtol=1e-4)
        np.testing.assert_allclose(ours, nll.T, atol=1e-5)
    if "final_memory" in golden:
        check_memory(memory, golden["final_memory"])


def check_log_probs(model, name, length):
    golden = outputs(name)
    lengths = [length] * (golden["tokens"].shape[1] // length)
    ours, memory = read_in_parts(
        model.log_probs, lengths, inputs=golden["tokens"]
    )
    np.testing.assert_allclose(ours, golden["log_probs"], atol=1e-5)
    check_memory(memory, golden["final_memory"])


@pytest.mark.parametrize(
    "name",
    [
        "enwik8_like",
        "enwik8_like_eval",
        "wt103_base_like",
        "wt103_large_like",
        "lm1b_large_like",
    ],
)
@pytest.mark.usefixtures("tensorflow_installed")
def test_equals_the_original_tensorflow_code(name):
    model = load_tf1(GOLDEN / name / "model.ckpt", stored_config(name))
    assert "grad_norm" in outputs(name)
    check_scores(model, name)


@pytest.mark.parametrize(
    "name",
    [
        "original_pytorch_enwik8_like",
        "original_pytorch_prenorm",
        "original_pytorch_wt103_like",
        "original_pytorch_shaw",
        "original_pytorch_vaswani",
        "original_pytorch_al_rfou",
        "nvidia_untied",
        "nvidia_same_length",
    ],
)
def test_scores_equal_the_stored_ones(name):
    model = load_arrays(stored_arrays(name), stored_config(name))
    check_scores(model, name)


def test_a_file_of_pytorch_is_read(tmp_path):
    name = "original_pytorch_wt103_like"
    path = save_torch(stored_arrays(name), tmp_path / "model_state.pt")
    model = load_pytorch(path, GOLDEN / name / "config.json")
    check_scores(model, name)


@pytest.mark.parametrize(
    "name, length",
    [
        ("hf_plain", 6),
        ("hf_wt103_like", 6),
        ("hf_shared_biases", 5),
        ("hf_mixed_projections", 5),
    ],
)
def test_equals_hugging_face(name, length):
    check_log_probs(load_hugging_face(GOLDEN / name), name, length)


def test_a_bin_file_of_hugging_face_is_read(tmp_path):
    name = "hf_wt103_like"
    arrays = safetensors.numpy.load_file(GOLDEN / name / "model.safetensors")
    save_torch(arrays, tmp_path / "pytorch_model.bin")
    config = (GOLDEN / name / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    check_log_probs(load_hugging_face(tmp_path), name, 6)

import keras
import numpy as np
import pytest
from factories import assert_same
from factories import random_ids
from factories import small_backbone
from factories import small_model
from keras import ops

from txl_keras.data import PermutedSegments
from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM

pytestmark = pytest.mark.every_backend

V, L = 11, 2
B, T = 3, 10


def small_lm(**config):
    config = {"num_layers": L, "head_dim": 7, **config}
    return small_model(make=XLNetBackbone, **config)


def batch_of(step=0, segment_length=T, **options):
    """What `score` takes of a permuted batch, by name."""
    tokens = random_ids(200, seed=2)
    segments = Segments(tokens, B, segment_length, drop_remainder=True)
    options = {"context_factor": 3, **options}
    batch = PermutedSegments(segments, **options).batch(step)
    del batch["weights"], batch["num_targets"]
    return batch


@pytest.mark.parametrize("with_next", [False, True])
def test_a_segment_is_the_product_of_its_conditionals(with_next):
    """Each target alone, all that comes later being padding."""
    length = T // 2 if with_next else T
    options = {"segment_length": length, "with_next": with_next}
    reuse_length = length if with_next else None
    model = small_lm(reuse_length=reuse_length)
    before, batch = batch_of(1, **options), batch_of(2, **options)
    _, memory = model.score(**before)
    together, _ = model.score(**batch, memory=memory)
    row = 1
    sees = batch["permutation_mask"][row]
    total = 0.0
    for target, token in enumerate(batch["targets"][row]):
        place = batch["target_mapping"][row, target].argmax()
        known = sees[place]
        log_probs, _ = model.log_probs(
            np.where(known, batch["inputs"], 0),
            target_mapping=np.tile(np.eye(T)[place], (B, 1, 1)),
            # Among those that are known, those that know each other.
            permutation_mask=np.tile(sees & known, (B, 1, 1)),
            padding_mask=np.tile(known, (B, 1)),
            memory=memory,
        )
        total += log_probs[row, 0, token]
    np.testing.assert_allclose(ops.sum(together[row]), -total, atol=1e-5)
    assert batch["targets"].shape[1] == (2 if with_next else 3)


def test_memory_knows_nothing_of_what_comes_again():
    """The second half of a batch is the first of the next: to be predicted."""
    model = small_lm(reuse_length=5)
    batch = batch_of(segment_length=5, with_next=True)
    _, memory = model.score(**batch)
    changed = batch["inputs"].copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % V
    _, again = model.score(**{**batch, "inputs": changed})
    assert np.array(memory.valid_length).tolist() == [5] * B
    assert_same(memory.states, again.states)


def test_without_a_mapping_every_token_is_a_target():
    model = small_lm()
    ids = random_ids(B, T)
    nll, _ = model.score(ids, ids)
    mapping = np.tile(np.eye(T, dtype="float32"), (B, 1, 1))
    expected, _ = model.score(ids, ids, target_mapping=mapping)
    assert nll.shape == (B, T)
    np.testing.assert_array_equal(nll, expected)


def test_without_a_mask_a_target_is_predicted_from_those_before_it():
    model = small_lm()
    ids = random_ids(B, T)
    log_probs, _ = model.log_probs(ids)
    for at in range(T):
        changed = ids.copy()
        changed[:, at] = (changed[:, at] + 1) % V
        after = model.log_probs(changed)[0]
        # Not even through the states of other tokens.
        np.testing.assert_array_equal(
            after[:, : at + 1], log_probs[:, : at + 1]
        )
        if at + 1 < T:
            assert np.abs(after - log_probs)[:, at + 1].max() > 1e-4


def test_evaluate_gives_the_mean_score_without_memory():
    model = small_lm()
    names = ("inputs", "permutation_mask", "target_mapping")
    batches = [batch_of(step) for step in (0, 3)]
    x = {n: np.concatenate([b[n] for b in batches]) for n in names}
    y = np.concatenate([b["targets"] for b in batches])
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    loss = model.evaluate(x, y, batch_size=B, verbose=0)
    expected = [ops.mean(model.score(**b)[0]) for b in batches]
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)


def test_a_batch_of_any_kind_gives_the_same():
    model, batch = small_lm(), batch_of()
    expected = model(batch)  # `targets` have no part in logits
    batch["target_mapping"] = batch["target_mapping"] != 0
    np.testing.assert_array_equal(model(batch), expected)
    del batch["targets"]
    np.testing.assert_array_equal(model(batch), expected)


@pytest.mark.tensorflow
def test_bad_arguments_are_refused():
    model = small_lm()
    batch = batch_of()
    for changes, message in (
        ({"inputs": batch["inputs"] + V}, "`inputs` must hold integers in"),
        ({"targets": batch["targets"] - V}, "`targets` must hold integers in"),
        ({"targets": batch["targets"][:, 1:]}, "`targets` must have the shape"),
        ({"target_mapping": np.eye(T)}, "`target_mapping` must have the shape"),
    ):
        with pytest.raises(ValueError, match=message):
            model.score(**{**batch, **changes})
    for wrong in (batch["inputs"], {"input": batch["inputs"]}):
        with pytest.raises(ValueError, match="dict with the key 'inputs'"):
            model(wrong)
    with pytest.raises(ValueError, match="XLNetBackbone. Received.*Transfo"):
        XLNetPermutationLM(small_backbone())
    with pytest.raises(ValueError, match="Received: backbone=XLNetBackbone"):
        TransformerXLCausalLM(model.backbone)

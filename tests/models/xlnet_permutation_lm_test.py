import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import random_ids
from factories import small_backbone
from factories import small_model

from txl_keras.data import PermutedSegments
from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM

V, D, L = 11, 8, 2
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


def test_logits_are_those_of_the_embedding_and_a_bias():
    model, batch = small_lm(), batch_of()
    _, query, _ = model.backbone(
        batch["inputs"],
        permutation_mask=batch["permutation_mask"],
        target_mapping=batch["target_mapping"],
    )
    table = model.backbone.token_embedding.embeddings[0]
    logits = np.einsum("bpd,vd->bpv", query, table) + model.softmax.biases[0]
    names = ("inputs", "permutation_mask", "target_mapping")
    features = {name: batch[name] for name in names}
    np.testing.assert_allclose(model(features), logits, atol=1e-5)
    log_probs, _ = model.log_probs(**features)
    np.testing.assert_allclose(log_probs, tf.nn.log_softmax(logits), atol=1e-5)
    nll, _ = model.score(**batch)
    expected = -np.take_along_axis(
        log_probs.numpy(), batch["targets"][..., None], axis=-1
    )
    np.testing.assert_allclose(nll, expected[..., 0], atol=1e-5)


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
    np.testing.assert_allclose(tf.reduce_sum(together[row]), -total, atol=1e-5)
    assert batch["targets"].shape[1] == (2 if with_next else 3)


def test_no_target_depends_on_a_token_it_may_not_see():
    model = small_lm(reuse_length=5)
    batch = batch_of(2, segment_length=5, with_next=True, context_factor=2)
    scored = batch.pop("targets")
    _, memory = model.score(**batch_of(1, segment_length=5, with_next=True))
    before, _ = model.log_probs(**batch, memory=memory)
    sees = np.einsum(
        "bpt,bts->bps",
        batch["target_mapping"],
        batch["permutation_mask"].astype("float32"),
    )
    assert scored.shape == (B, 4)
    for place in range(T):
        changed = batch["inputs"].copy()
        changed[:, place] = (changed[:, place] + 1) % V
        after, _ = model.log_probs(
            **{**batch, "inputs": changed}, memory=memory
        )
        moved = np.abs(after - before).max(axis=-1)
        may_move = sees[:, :, place] == 1
        np.testing.assert_array_equal(moved[~may_move], 0)
        assert (moved[may_move] > 1e-5).all()


def test_memory_knows_nothing_of_what_comes_again():
    """The second half of a batch is the first of the next: to be predicted."""
    model = small_lm(reuse_length=5)
    batch = batch_of(segment_length=5, with_next=True)
    _, memory = model.score(**batch)
    changed = batch["inputs"].copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % V
    _, again = model.score(**{**batch, "inputs": changed})
    assert memory.valid_length.numpy().tolist() == [5] * B
    assert_same(memory.states, again.states)


def test_gradients_reach_all_weights():
    for tie_embeddings in (True, False):
        model = small_lm(tie_embeddings=tie_embeddings, num_layers=1)
        _, memory = model.score(**batch_of(1))
        with tf.GradientTape() as tape:
            nll, _ = model.score(
                **batch_of(2),
                memory=memory,
                token_type_ids=random_ids(B, T) % 2,
            )
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(
            model.trainable_variables, gradients, strict=True
        ):
            size = tf.reduce_max(tf.abs(tf.convert_to_tensor(gradient)))
            # A bias of keys is the same for all keys, but not that of values.
            assert size > 1e-7, variable.path


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
    expected = [tf.reduce_mean(model.score(**b)[0]) for b in batches]
    np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)


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
    with pytest.raises(ValueError, match="XLNetBackbone. Received.*Transfo"):
        XLNetPermutationLM(small_backbone())
    with pytest.raises(ValueError, match="Received: backbone=XLNetBackbone"):
        TransformerXLCausalLM(model.backbone)

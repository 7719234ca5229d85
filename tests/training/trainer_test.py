"""Also: checkpointing. Several replicas are tested in conformance/."""

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import seed_weights
from factories import small_backbone
from factories import trainer_rewinder

from txl_keras.data import Segments
from txl_keras.layers import DecoderBlock
from txl_keras.layers.compute import target
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.optimizers import build_optimizer
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.trainer import Trainer

STRATEGY = tf.distribute.get_strategy()
TOKENS = np.tile([0, 1, 2, 3, 4, 5, 6, 2, 4], 40)


def make_model(**overrides):
    config = {"vocabulary_size": 7, "num_layers": 1, **overrides}
    config = {"initializer_stddev": 0.1, **config}
    return TransformerXLCausalLM(small_backbone(**config))


def make_trainer(model, learning_rate=0.03, **kwargs):
    optimizer = build_optimizer("adam", learning_rate)
    return Trainer(model, optimizer, STRATEGY, batch_size=3, **kwargs)


def make_iterator(first_step=0):
    segments = Segments(TOKENS, 3, 5, drop_remainder=True)
    return iter(segments.distribute(STRATEGY, first_step=first_step))


def save(directory, trainer, **kwargs):
    checkpoints = Checkpoints(str(directory), trainer, **kwargs)
    checkpoints.save()
    checkpoints.wait()


@pytest.fixture(scope="module")
def rewind():
    seed_weights(3)
    return trainer_rewinder(make_trainer(make_model()))


@pytest.fixture
def trainer(rewind):
    """A trainer before its first step, which is compiled already."""
    return rewind()


@pytest.fixture(scope="module")
def rewind_float16():
    seed_weights(3)
    return trainer_rewinder(make_trainer(make_model(dtype="mixed_float16")))


def test_a_repeating_text_is_learned(trainer):
    loss = trainer.train(make_iterator(), 60)["loss"]
    assert loss.shape == (60,)
    assert loss[0] > 1.5
    # Without a past, what follows 2 and 4 is open: 0.3 nats.
    assert loss[-5:].mean() < 0.15


@pytest.fixture(scope="module")
def dropping():
    """Functions that set a trainer of one model with dropout back.

    By the number of pieces, 1 or 3, of their 6 rows; of seeds 5 and 9.
    """
    model = make_model(dropout=0.3)
    return {
        pieces: trainer_rewinder(
            Trainer(
                model, build_optimizer("sgd", 0.5), STRATEGY, batch_size=6,
                clip_norm=1.0, accumulate_steps=pieces, seed=seed,
            )
        )
        for pieces, seed in ((1, 5), (3, 9))
    }  # fmt: skip


def pieces_segments():
    tokens = np.arange(400) ** 2 % 7
    return Segments(tokens, 6, 5, drop_remainder=True)


def test_a_seed_set_between_steps_is_that_of_the_next_masks(dropping):
    def first_loss(trainer):
        iterator = iter(pieces_segments().distribute(STRATEGY))
        return trainer.train(iterator, 1)["loss"][0]

    trainer = dropping[1]()
    assert trainer.seed == 5
    before = first_loss(trainer)
    # The other has this seed from the beginning.
    other = dropping[3]()
    assert other.seed == 9
    expected = first_loss(other)
    trainer = dropping[1]()
    trainer.seed = 9
    assert trainer.seed == 9
    assert abs(expected - before) > 1e-3
    assert first_loss(trainer) == pytest.approx(expected, rel=1e-6)


def test_padding_is_no_part_of_the_loss(trainer):
    # Documents of 4, 2 and 9 tokens: 3, 1 and 5 + 3 predictions.
    segments = Segments(
        np.arange(15) % 7, 3, 5, True, documents=np.array([0, 4, 6]),
        reset_documents=True,
    )  # fmt: skip
    nll, _ = trainer.model.score(**{k: segments.batch(0)[k] for k in NAMES})
    expected = sum(nll[0, :3]) + sum(nll[1, :1]) + sum(nll[2])
    loss = trainer.train(iter(segments.distribute(STRATEGY)), 1)["loss"]
    np.testing.assert_allclose(loss, [expected / 9], rtol=1e-5)


NAMES = ("inputs", "targets", "reset")


def test_rows_in_pieces_are_the_same_step(dropping):
    segments = pieces_segments()
    runs = []
    for rewind in dropping.values():
        trainer = rewind()
        trainer.seed = 0
        results = trainer.train(iter(segments.distribute(STRATEGY)), 7)
        memory = trainer.memory.read()
        run = results, trainer.model.get_weights(), memory.states[0]
        runs.append(tf.nest.flatten(run))
        assert memory.valid_length.numpy().tolist() == [6] * 6
    assert_same(*runs, atol=2e-5)


def test_float16_learns_and_forgets_a_memory_that_overflows(rewind_float16):
    trainer = rewind_float16()
    iterator = make_iterator()
    results = trainer.train(iterator, 60)
    good = results["skipped"] == 0
    assert results["loss"][good][-5:].mean() < 0.2
    assert trainer.optimizer.iterations.numpy() == good.sum()
    # Weights that float16 cannot work with: the step is skipped, and memory
    # does not harm those after it.
    kernel = trainer.model.trainable_variables[0]
    before = kernel.numpy()
    kernel.assign(before * 1e8)
    results = trainer.train(iterator, 1)
    assert results["skipped"].tolist() == [1.0]
    states = trainer.memory.read().states[0].numpy()
    assert np.isfinite(states).all()
    np.testing.assert_array_equal(kernel.numpy(), before * np.float32(1e8))
    kernel.assign(before)
    losses = trainer.train(iterator, 20)["loss"]
    assert losses[:5].mean() < 0.2
    # Not the mean of all: at each new beginning of the text a loss jumps up.
    assert np.median(losses) < 0.3


def test_float16_gives_up_where_no_scale_helps(rewind_float16):
    trainer = rewind_float16()
    trainer.model.trainable_variables[0].assign_add(1e30)
    with pytest.raises(FloatingPointError, match="At step 16 the loss is"):
        trainer.train(make_iterator(), 30)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_muon_orthogonalizes_in_the_precision_of_the_model(
    dtype, tmp_path, monkeypatch
):
    instructions = tmp_path / "cpuinfo"
    instructions.write_text("flags : amx_bf16\n")
    monkeypatch.setattr(target, "_CPU_INFO", instructions)
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    model = make_model(dtype=policy)
    kernel = next(w for w in model.weights if "query/kernel" in w.path)
    before = kernel.numpy()
    optimizer = build_optimizer("muon", 0.1)
    Trainer(model, optimizer, STRATEGY, batch_size=3).train(make_iterator(), 1)
    assert optimizer.matrix_dtype == dtype
    update = (kernel.numpy() - before).reshape(len(before), -1)
    # The gradient of 7 different tokens has a rank of 7.
    values = np.linalg.svd(update)[1][:7] / 0.02 / max(update.shape) ** 0.5
    assert 0.5 < values.min() < values.max() < 1.4


@pytest.fixture
def grappler():
    """Graphs are rewritten, as outside of tests."""
    options = tf.config.optimizer.set_experimental_options
    options({"disable_meta_optimizer": False})
    yield
    options({"disable_meta_optimizer": True})


@pytest.mark.usefixtures("grappler")
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_muon_learns_in_bfloat16_from_rows_in_pieces(dtype):
    sizes = {"vocabulary_size": 40, "hidden_dim": 16, "cutoffs": (10,)}
    trainer = Trainer(
        make_model(dtype=dtype, **sizes),
        build_optimizer("muon", 0.03),
        STRATEGY,
        batch_size=4,
        accumulate_steps=2,
    )
    segments = Segments(np.arange(900) * 7 % 40, 4, 8, drop_remainder=True)
    losses = trainer.train(iter(segments.distribute(STRATEGY)), 40)["loss"]
    assert losses[-5:].mean() < losses[:5].mean() - 0.1


def test_a_block_may_have_a_scalar_weight():
    class ScaledBlock(DecoderBlock):
        def build(self, inputs_shape):
            super().build(inputs_shape)
            self.scale = self.add_weight((), initializer="ones")

        def residual(self, inputs, update, sublayer):
            return inputs + self.scale * update

    class ScaledBackbone(TransformerXLBackbone):
        block_class = ScaledBlock

    config = {"make": ScaledBackbone, "num_layers": 1, "vocabulary_size": 7}
    with pytest.raises(ValueError, match="`normalize_first` must be True for"):
        small_backbone(**config)
    backbone = small_backbone(**config, normalize_first=True)
    trainer = make_trainer(TransformerXLCausalLM(backbone))
    results = trainer.train(make_iterator(), 1)
    assert np.isfinite(results["gradient_norm"]).all()
    scale = next(w for w in backbone.weights if w.shape == ())
    assert scale.numpy() != 1


def test_a_frozen_model_is_refused():
    model = make_model()
    model.trainable = False
    with pytest.raises(ValueError, match="must have trainable weights"):
        make_trainer(model)


def test_nan_is_reported_with_its_step(trainer):
    trainer.optimizer.learning_rate = 1e38
    with pytest.raises(FloatingPointError, match="step 2 the loss is nan"):
        trainer.train(make_iterator(), 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"clip_norm": x}, f"clip_norm={x}") for x in (0, -1.0, np.inf)),
        ({"clip_norm": np.nan}, "clip_norm=nan"),
        ({"accumulate_steps": 2}, "replicas = 3. .*steps=2"),
        ({"accumulate_steps": 0}, "accumulate_steps=0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, trainer):
    with pytest.raises(ValueError, match=message):
        make_trainer(trainer.model, **arguments)


def test_a_restored_trainer_has_weights_step_and_memory(
    trainer, rewind, tmp_path
):
    trainer.train(make_iterator(), 4)
    save(tmp_path, trainer)
    memory = [variable.numpy() for variable in trainer.memory.state_variables]
    expected = trainer.train(make_iterator(4), 3)["loss"]

    restored = rewind()
    Checkpoints(str(tmp_path), restored).restore()
    assert restored.step.numpy() == 4
    assert_same(restored.memory.state_variables, memory)
    assert restored.memory.read().valid_length.numpy().tolist() == [6, 6, 6]
    found = restored.train(make_iterator(4), 3)["loss"]
    np.testing.assert_array_equal(found, expected)


def test_results_of_a_skipped_step_are_saved(tmp_path, trainer):
    """In float16 its gradient is not finite."""
    checkpoints = Checkpoints(str(tmp_path), trainer)
    assert checkpoints.latest is None
    assert checkpoints.restore() == {}
    norms = np.array([1.0, np.inf], np.float32)
    checkpoints.save({"gradient_norm": norms})
    checkpoints.wait()
    results = Checkpoints(str(tmp_path), trainer).restore()
    np.testing.assert_array_equal(results["gradient_norm"], norms)

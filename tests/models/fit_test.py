"""`fit` and `evaluate` against `Trainer`, for all kinds of data.

Documents of `DOCUMENTS` tokens do not fill the segments, so that weights,
resets and the number of targets differ from step to step.
"""

import collections
import itertools
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import random_ids
from factories import rewinder
from factories import seed_weights
from factories import small_model
from factories import trainer_rewinder

from txl_keras.callbacks import BackupAndRestore
from txl_keras.data import ByteTokenizer
from txl_keras.data import Segments
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.fit_data import as_data
from txl_keras.models.fit_data import is_text
from txl_keras.models.fit_data import text_segments
from txl_keras.training import Trainer

B, T = 3, 7
STEPS = 20  # more than one epoch
DOCUMENTS = np.array([0, 30, 41, 100])
OPTIONS = {
    "plain": {},
    "documents": {"documents": DOCUMENTS, "reset_documents": True},
    "roll": {"order": "roll"},
}


def segments_of(option="documents", **options):
    tokens = random_ids(1, 170, seed=3)[0]
    defaults = {"segment_length": T, "drop_remainder": True}
    options = {**defaults, **OPTIONS[option], **options}
    return Segments(tokens, B, seed=1, **options)


def model_with_dropout(seed=5, **config):
    """Compiled: the seed of dropout is drawn here."""
    seed_weights(seed)
    model = small_model(
        **{"num_layers": 1, "dropout": 0.2, "cutoffs": (6,), **config}
    )
    # It has a state and counts its steps, and compiles faster than Adam.
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.8)
    sgd = keras.optimizers.SGD(rate, 0.9, global_clipnorm=0.4)
    model.compile(sgd, jit_compile=False)  # which takes seconds
    return model


def function_to_rewind(model):
    rewind, seed = rewinder(model), model.fit_steps.seed

    def rewind_settings(steps_per_execution=1):
        model = rewind()
        model.fit_steps.seed = seed  # which a backup replaced
        if model.fit_steps.trainer:
            model.fit_steps.trainer.seed = seed
        if model.steps_per_execution != steps_per_execution:
            model.steps_per_execution = steps_per_execution
            model.train_function = model.test_function = None
        return model

    return rewind_settings


@pytest.fixture(scope="module")
def rewind():
    return function_to_rewind(model_with_dropout())


@pytest.fixture(scope="module")
def rewind_other():
    """Function that sets a model of other weights and another seed back."""
    model = model_with_dropout(seed=6)
    model.fit_steps.seed = 7
    return function_to_rewind(model)


@pytest.fixture(scope="module")
def begin():
    """Function that returns a `Trainer` of such a model at its first step."""
    model = model_with_dropout()
    trainer = Trainer(
        model,
        model.optimizer,
        tf.distribute.get_strategy(),
        B,
        seed=model.fit_steps.seed,
        jit_compile=False,
    )
    return trainer_rewinder(trainer)


def mean_nll(model, segments):
    """Yields the mean loss of each batch, as `score` computes it."""
    memory = None
    for step in range(len(segments)):
        batch = segments.batch(step)
        nll, memory = model.score(
            batch["inputs"], batch["targets"], memory, batch["reset"]
        )
        total = tf.reduce_sum(nll * batch["weights"])
        yield float(total) / batch["num_targets"]


Pair = collections.namedtuple("Pair", ["x", "y"])


def test_every_kind_of_data_gives_the_same_by_one_graph(rewind, monkeypatch):
    segments = segments_of("plain")
    x, y = segments.arrays()
    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    steps = len(segments)
    model = rewind()
    score = mock.Mock(side_effect=model.score)
    monkeypatch.setattr(model, "score", score)
    for batch in _batches(x, y):
        model.train_on_batch(*batch)
    by_hand = model.get_weights()
    for data in (
        {"x": segments.dataset(num_steps=steps)},
        {"x": segments.dataset(), "steps_per_epoch": steps},
        {"x": x, "y": y, "batch_size": B},
        {"x": pairs.batch(B)},
        {"x": pairs.batch(B, drop_remainder=True)},
        {"x": pairs.batch(B).map(Pair)},
        {"x": _batches(x, y)},
        {"x": segments},
    ):
        rewind().fit(**data, verbose=0)
        assert_same(model.get_weights(), by_hand, atol=1e-6)
    assert score.call_count == 1


def _batches(x, y):
    """A generator, which only Keras reads."""
    for i in range(0, len(x), B):
        yield x[i : i + B], y[i : i + B]


@pytest.mark.parametrize("option", ["documents", "roll"])
def test_fit_computes_what_the_trainer_computes(option, model, begin):
    segments = segments_of(option)
    epochs = STEPS // len(segments) + 1
    recorded = []  # the loss of an epoch up to each step
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: recorded.append(float(logs["loss"]))
    )
    model.fit(segments, epochs=epochs, callbacks=record, verbose=0)
    weights = model.get_weights()

    trainer = begin()
    iterator = iter(segments.distribute(trainer.strategy))
    num_steps = epochs * len(segments)
    losses = trainer.train(iterator, num_steps)["loss"]
    counts = [segments.batch(i)["num_targets"] for i in range(num_steps)]
    losses, counts = (np.reshape(x, (epochs, -1)) for x in (losses, counts))
    expected = np.cumsum(losses * counts, axis=1) / np.cumsum(counts, axis=1)
    assert num_steps >= STEPS
    np.testing.assert_allclose(recorded, expected.ravel(), rtol=1e-6)
    assert_same(weights, trainer.model.weights, atol=1e-6)


def test_evaluate_weights_every_target_of_segments_once(model):
    segments = segments_of("documents", drop_remainder=False)
    counts = [
        segments.batch(step)["num_targets"] for step in range(len(segments))
    ]
    assert sum(counts) == segments.num_predictions - len(DOCUMENTS) + 1
    expected = np.average([*mean_nll(model, segments)], weights=counts)
    evaluated = model.evaluate(segments, return_dict=True, verbose=0)
    assert evaluated["loss"] == pytest.approx(expected, rel=1e-5)
    bits = evaluated["bits_per_token"]
    assert bits == pytest.approx(expected / np.log(2), rel=1e-5)
    dataset = segments.dataset(num_steps=len(segments))
    assert model.evaluate(dataset, return_dict=True, verbose=0) == evaluated


@pytest.mark.parametrize(
    "settings",
    [
        {"clipnorm": 0.1},
        {"clipvalue": 0.02, "use_ema": True, "ema_momentum": 0.6},
        {"gradient_accumulation_steps": 2, "global_clipnorm": 0.3},
        {"gradient_accumulation_steps": 3, "use_ema": True},
    ],
)
def test_settings_of_the_optimizer_are_heeded(settings):
    """As Keras's own step heeds them, which a loss of the user makes run."""
    segments = Segments(random_ids(50), B, T, drop_remainder=True)
    weights, losses = [], []
    for loss in ("auto", keras.losses.SparseCategoricalCrossentropy(True)):
        model = model_with_dropout(dropout=0.0, cutoffs=())
        model.compile(
            keras.optimizers.SGD(0.3, **settings),
            loss,
            run_eagerly=True,  # tracing it takes seconds
        )
        losses.append(model.fit(segments, verbose=0).history["loss"])
        weights.append(model.get_weights())
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert_same(*weights, atol=1e-5)


def test_other_weights_may_be_frozen_but_not_unfrozen():
    model = small_model(num_layers=1)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    segments = segments_of("plain")
    embedding = model.backbone.token_embedding
    for is_trained in (True, False):
        embedding.trainable = is_trained
        model.compile(optimizer, run_eagerly=True)
        before = [w.numpy() for w in embedding.weights]
        model.fit(segments, verbose=0)
        changes = np.abs(before[0] - embedding.weights[0].numpy()).max()
        assert (changes > 0) == is_trained
    model.compile("sgd", run_eagerly=True)
    model.fit(segments, verbose=0)
    embedding.trainable = True
    model.compile(model.optimizer, run_eagerly=True)
    with pytest.raises(ValueError, match="recreate a new optimizer"):
        model.fit(segments, verbose=0)
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), run_eagerly=True)
    model.fit(segments, verbose=0)
    embedding.trainable = False
    model.compile(model.optimizer, run_eagerly=True)
    with pytest.raises(ValueError, match="`optimizer` must be a new one"):
        model.fit(segments, verbose=0)


def test_settings_that_have_no_meaning_here_are_errors():
    model = small_model(num_layers=1)
    adam = keras.optimizers.Adam
    for optimizer, name in (
        (adam(use_ema=True, ema_overwrite_frequency=3), "ema_overwrite"),
        (keras.optimizers.LossScaleOptimizer(adam()), "inner optimizer"),
        (keras.optimizers.Nadam(), "optimizer=Nadam"),
        (keras.optimizers.Muon(), "Muon` instead of Keras's"),
    ):
        with pytest.raises(ValueError, match=f"`optimizer.*{name}"):
            model.compile(optimizer)


def test_a_loss_that_is_not_finite_is_an_error(model):
    model.weights[0].assign(model.weights[0] * np.nan)
    with pytest.raises(FloatingPointError, match="After batch 0 .* is nan"):
        model.fit(segments_of(), verbose=0)


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` by an error, as a machine that is taken away."""

    def __init__(self, after):
        super().__init__()
        self.after = after
        self.done = itertools.count(1)  # no number, which a backup would keep

    def on_train_batch_end(self, batch, logs=None):
        if next(self.done) == self.after:
            raise KeyboardInterrupt


def test_several_steps_in_one_call_compute_the_same(rewind):
    segments = segments_of()
    histories = []
    assert len(segments) % 3
    for steps_per_execution in (1, 3):
        model = rewind(steps_per_execution)
        history = model.fit(
            segments, epochs=2, validation_data=segments, verbose=0
        ).history
        histories.append(history)
        assert int(model.fit_steps.trainer.step) == 2 * len(segments)
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5)


def test_an_interrupted_fit_goes_on_as_if_nothing_had_happened(
    rewind, rewind_other, tmp_path
):
    segments = segments_of("roll")
    steps_per_execution = 3
    executions = -(-len(segments) // steps_per_execution)
    assert len(segments) % steps_per_execution
    whole = rewind(steps_per_execution)
    expected = whole.fit(segments, epochs=3, verbose=0).history
    weights = whole.get_weights()

    def fit(*callbacks):
        is_first = not tmp_path.joinpath("backup").exists()
        model = (rewind if is_first else rewind_other)(steps_per_execution)
        backup = BackupAndRestore(tmp_path / "backup", save_freq=2)
        fitted = model.fit(
            segments, epochs=3, callbacks=[backup, *callbacks], verbose=0
        )
        return model.get_weights(), fitted.history

    # At the end of the first epoch, then within the second.
    for after in (executions, executions + 2):
        with pytest.raises(KeyboardInterrupt):
            fit(Interrupt(after))
    found, history = fit()
    assert_same(found, weights)
    for name, values in history.items():
        np.testing.assert_allclose(values, expected[name][-len(values) :])
    assert not tmp_path.joinpath("backup").exists()


def test_averages_at_the_end_of_an_epoch_need_backups_within_it(tmp_path):
    model = small_model(num_layers=1)
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), run_eagerly=True)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    with pytest.raises(ValueError, match="`save_freq` must be an integer"):
        model.fit(segments_of(), callbacks=[swap, BackupAndRestore(tmp_path)])


def test_data_of_unknown_length_begins_again_in_later_epochs(
    rewind, rewind_other, tmp_path
):
    segments = segments_of("roll")
    data = segments.dataset(num_steps=len(segments)).filter(lambda _: True)

    def fit(model, *callbacks):
        model.fit(data, epochs=3, callbacks=[*callbacks], verbose=0)
        return model.get_weights()

    def interrupt(epoch, logs):
        raise KeyboardInterrupt

    weights = fit(rewind())
    for save_freq, interruption in (
        (2, Interrupt(3)),
        # After the last batch of an epoch, before its end.
        (len(segments), keras.callbacks.LambdaCallback(on_epoch_end=interrupt)),
    ):
        backup = BackupAndRestore(tmp_path / "backup", save_freq)
        with pytest.raises(KeyboardInterrupt):
            fit(rewind(), backup, interruption)
        assert_same(fit(rewind_other(), backup), weights)


def test_float16_reports_no_loss_that_overflows_as_a_good_one():
    model = small_model(num_layers=1, dtype="mixed_float16")
    for weight in model.backbone.blocks[0].weights:
        weight.assign(1e4 * tf.ones_like(weight))
    model.compile("sgd", weighted_metrics=["perplexity"], run_eagerly=True)
    ids = random_ids(3, 6)
    data = {"x": ids[:, :-1], "y": ids[:, 1:], "batch_size": 3, "verbose": 0}
    fitted = model.fit(**data).history
    evaluated = model.evaluate(**data, return_dict=True)
    for name in ("loss", "perplexity"):
        assert np.isnan(fitted[name][0]) and np.isnan(evaluated[name])


class OwnStep(TransformerXLCausalLM):
    """Trains by a step of its own, and counts those of `fit`."""

    def train_step(self, data):
        return super().train_step({**data, "weights": 2.0 * data["weights"]})

    def test_step(self, data):
        return super().test_step({**data, "weights": 3.0 * data["weights"]})


class OwnLoss(TransformerXLCausalLM):
    """Computes a loss of its own, for which logits are needed."""

    def compute_loss(self, *args, **kwargs):
        return 2.0 * super().compute_loss(*args, **kwargs)


class WithoutSuper(TransformerXLCausalLM):
    """Trains by gradient descent of its own, as tutorials show it."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            nll, _ = self.score(data["inputs"], data["targets"])
            loss = tf.reduce_mean(nll)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"nll": loss}


class OwnLogits(TransformerXLCausalLM):
    """Computes logits of its own."""

    def call(self, *args, **kwargs):
        return 0.0 * super().call(*args, **kwargs)


@pytest.mark.parametrize(
    ("make", "of_fit", "of_evaluate"), [(OwnStep, 2, 3), (OwnLoss, 2, 2)]
)
def test_what_a_subclass_overrides_is_heeded(make, of_fit, of_evaluate):
    segments = segments_of("plain")
    model = make(small_model(num_layers=1).backbone)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    expected = sum(mean_nll(model, segments)) / len(segments)
    fitted = model.fit(segments, verbose=0).history["loss"]
    assert fitted[0] == pytest.approx(of_fit * expected, rel=1e-5)
    evaluated = model.evaluate(segments, verbose=0)[0]
    assert evaluated == pytest.approx(of_evaluate * expected, rel=1e-5)


def test_what_keras_does_with_weights_and_losses_is_heeded():
    segments = segments_of("plain")
    model = small_model(num_layers=1)
    sgd = keras.optimizers.SGD(0.0)
    model.compile(sgd, loss_weights=[3.0], run_eagerly=True)
    expected = sum(mean_nll(model, segments)) / len(segments)
    fitted = model.fit(segments, verbose=0).history["loss"]
    assert fitted[0] == pytest.approx(3 * expected, rel=1e-5)
    weight = model.trainable_weights[0]
    weight.regularizer = keras.regularizers.L2(2.0)
    weight.constraint = keras.constraints.MaxNorm(1e-3)
    model.reset_memory()
    added = 2.0 * np.sum(np.square(weight))
    model.compile(sgd, run_eagerly=True)
    batch = segments.batch(0)["inputs"], segments.batch(0)["targets"]
    nll, _ = model.score(*batch)
    loss = model.train_on_batch(*batch)[0]
    assert loss == pytest.approx(np.mean(nll) + added, rel=1e-5)
    assert np.abs(weight).max() <= 1e-3
    with pytest.raises(ValueError, match="no `constraint`"):
        Trainer(model, sgd, tf.distribute.get_strategy(), B)
    model = OwnLogits(small_model(num_layers=1).backbone)
    model.compile("sgd", run_eagerly=True)
    fitted = model.fit(segments, verbose=0).history["loss"]
    assert fitted[0] == pytest.approx(np.log(11), rel=1e-5)


def test_losses_that_the_step_does_not_train_are_an_error():
    model = small_model(num_layers=1)
    model.compile("sgd", run_eagerly=True)
    model.trainable_weights[0].regularizer = keras.regularizers.L2(2.0)
    with pytest.raises(ValueError, match="must add no losses"):
        model.fit(segments_of("plain"), verbose=0)


class Shifting(keras.utils.PyDataset):
    """Yields other batches in every epoch."""

    def __init__(self, x, y):
        super().__init__()
        self.parts, self.epoch = list(_batches(x, y)), 0

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        x, y = self.parts[index]
        return (x + self.epoch) % 11, (y + self.epoch) % 11

    def on_epoch_end(self):
        self.epoch += 1


def test_a_pydataset_may_change_at_the_end_of_an_epoch(rewind):
    segments = segments_of("plain")
    x, y = segments.arrays()
    model = rewind()
    for epoch in range(2):
        model.reset_memory()
        for one, other in _batches((x + epoch) % 11, (y + epoch) % 11):
            model.train_on_batch(one, other)
    by_hand = model.get_weights()
    rewind().fit(Shifting(x, y), epochs=2, verbose=0)
    assert_same(model.get_weights(), by_hand, atol=1e-6)


def test_a_generator_is_read_once(model):
    x, y = segments_of("plain").arrays()
    with pytest.raises(tf.errors.InvalidArgumentError, match="read only once"):
        model.fit(_batches(x, y), epochs=2, verbose=0)


def test_a_train_step_of_the_user_may_do_all_by_itself(tmp_path):
    model = WithoutSuper(small_model(num_layers=1).backbone)
    model.compile(keras.optimizers.SGD(0.1))
    segments = segments_of()
    backup = BackupAndRestore(tmp_path, save_freq=2, delete_checkpoint=False)
    history = model.fit(
        segments, epochs=4, callbacks=[backup], verbose=0
    ).history
    assert list(tmp_path.iterdir())
    assert history.keys() == {"nll"}
    assert 0 < history["nll"][-1] < history["nll"][0] - 0.1
    batch = segments.batch(4 * len(segments) - 1)
    nll, _ = model.score(batch["inputs"], batch["targets"])
    assert history["nll"][-1] == pytest.approx(np.mean(nll), abs=0.1)


def test_text_is_read_as_segments():
    text, other = "to be or not to be, that is " * 4, "the question: " * 5
    tokenizer = ByteTokenizer()
    model = small_model(num_layers=1, vocabulary_size=256, memory_length=9)
    metrics = ["bits_per_byte", "bits_per_token"]
    with pytest.raises(ValueError, match="bits_per_byte for .*=NoneType"):
        model.compile(weighted_metrics=metrics)
    model.tokenizer = tokenizer
    model.compile("sgd", weighted_metrics=metrics, jit_compile=False)
    rewind = rewinder(model)
    documents = np.array([0, len(text)])
    for x, validation, segments in (
        (text, other, {"tokens": tokenizer.encode(text)}),
        (
            [text, other],
            [text],
            {
                "tokens": tokenizer.encode(text + other),
                "documents": documents,
                "reset_documents": True,
            },
        ),
    ):
        history = (
            rewind()
            .fit(x, batch_size=B, validation_data=validation, verbose=0)
            .history
        )
        evaluated = model.evaluate(validation, batch_size=B, verbose=0)
        assert history["val_loss"][0] == pytest.approx(evaluated[0])
        segments = Segments(
            batch_size=B, segment_length=9, drop_remainder=True, **segments
        )
        expected = rewind().fit(segments, verbose=0).history
        assert history["loss"] == expected["loss"]
        assert history["bits_per_byte"] == pytest.approx(
            history["bits_per_token"]
        )
    model.compile("sgd", metrics=["accuracy"], jit_compile=False)
    history = model.fit(text, batch_size=B, validation_data=text, verbose=0)
    assert 0 <= history.history["val_accuracy"][0] < 0.5
    dicts = Segments(tokenizer.encode(text), B, 9, True).dataset(num_steps=2)
    for call in (model.fit, model.predict):
        with pytest.raises(ValueError, match="`x` must be token ids, or a dat"):
            call(dicts, verbose=0)
    (logits,) = model.predict(tf.constant([text]), verbose=0)
    assert logits.shape == (len(text), 256)
    log_probs, _ = model.log_probs(tokenizer.encode(text)[None, :9])
    found = tf.nn.log_softmax(logits[:9])
    np.testing.assert_allclose(found, log_probs[0], atol=1e-5)
    np.testing.assert_array_equal(logits, model.predict(text, verbose=0))
    with pytest.raises(ValueError, match=r"`x` must .* Received: x\[1\]=''"):
        model.fit([text, ""], batch_size=1)
    model.tokenizer = None
    with pytest.raises(ValueError, match="`tokenizer` must be set in a mod"):
        model.fit(text, batch_size=B)


def test_text_may_come_in_many_kinds():
    texts = ["to bé", "or not"]
    strings = np.array(texts)
    dataset = tf.data.Dataset.from_tensor_slices(strings)
    for x in (texts, strings, tf.constant(strings), dataset.batch(2)):
        assert is_text(x) and as_data(x) == texts
    for x in ("to bé", np.array("to bé"), tf.constant("to bé")):
        assert is_text(x) and as_data(x) == "to bé"
    for x in ([], [1, 2], ["a", 1], np.ones(3), tf.ones(3), None):
        assert not is_text(x)
    with pytest.raises(ValueError, match="A dataset of strings must have an"):
        as_data(dataset.repeat())
    # By default 32 rows, or as many as there are segments.
    for length, batch_size in ((300, 32), (50, 5), (15, 1)):
        segments = text_segments([np.arange(length)], None, 9, True)
        assert segments.batch_size == batch_size
    for length, batch_size in ((300, 30), (50, 3), (15, 3)):
        segments = text_segments([np.arange(length)], None, 9, False, 3)
        assert segments.batch_size == batch_size
    # No segment holds parts of two texts.
    segments = text_segments([np.arange(5)] * 10, None, 4, True)
    assert (segments.batch_size, segments.steps_per_epoch) == (10, 1)

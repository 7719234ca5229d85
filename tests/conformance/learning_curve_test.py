"""The learning curve of the original code, matched; minutes of work.

pytest -m large tests/conformance/learning_curve_test.py
"""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from txl_keras.data import Segments
from txl_keras.data import build_tokenizer
from txl_keras.data import load_corpus
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.optimizers import build_optimizer
from txl_keras.training.schedules import build_schedule
from txl_keras.training.trainer import Trainer

DATA = pathlib.Path(__file__).parents[3] / "shared/data"
# Valid bpc of the original PyTorch code after 100, 200, ... 500 steps.
ORIGINAL = [3.68, 3.33, 3.20, 3.14, 3.11]


@pytest.mark.large
@pytest.mark.skipif(
    not (DATA / "enwik8.gz").exists(), reason="needs enwik8 in shared/data"
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_learning_curve_is_that_of_the_original(seed):
    corpus = load_corpus("enwik8", manual_dir=str(DATA))
    tokenizer = build_tokenizer("characters", corpus, drop_newlines=True)
    train = tokenizer.encode(corpus.read("train")[:10_000_000])
    valid = tokenizer.encode(corpus.read("valid")[:500_000])

    keras.utils.set_random_seed(seed)
    strategy = tf.distribute.get_strategy()
    model = TransformerXLCausalLM(
        TransformerXLBackbone(
            vocabulary_size=tokenizer.vocabulary_size,
            num_layers=4,
            num_heads=4,
            hidden_dim=256,
            intermediate_dim=1024,
            memory_length=128,
            dropout=0.1,
        )
    )
    optimizer = build_optimizer("adam", build_schedule("cosine", 5e-4, 500))
    trainer = Trainer(
        model, optimizer, strategy, batch_size=16, clip_norm=0.25, seed=seed
    )
    evaluator = Evaluator(model, strategy, batch_size=16, segment_length=128)
    iterator = iter(Segments(train, 16, 128, True).distribute(strategy))
    held_out = Segments(valid, 16, 128, False)
    curve = []
    for _ in ORIGINAL:
        trainer.train(iterator, 100)
        scores = evaluator.evaluate(held_out)
        curve.append(scores["bits_per_token"])
    print(f"seed {seed}: {np.round(curve, 3)}; original: {ORIGINAL}")
    assert curve[-1] <= ORIGINAL[-1] + 0.03
    np.testing.assert_allclose(curve, ORIGINAL, atol=0.12)

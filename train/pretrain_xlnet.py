r"""Trains an XLNet to predict tokens of a text from any other tokens.

    txl pretrain_xlnet --workdir=runs/xlnet \
        --corpus=path/to/text_or_folder
    txl pretrain_xlnet --workdir=runs/xlnet_large --corpus=FOLDER \
        --tokenizer=sentencepiece --vocabulary=spiece.model --num_layers=24 \
        --num_heads=16 --hidden_dim=1024 --intermediate_dim=4096 \
        --segment_length=512 --memory_length=384 --reuse_half --tpu=local

The objective is permutation language modelling with spans (Yang et al., 2019).
A score is the mean over the tokens that were drawn as targets. It is printed
beside the score of a baseline that predicts by token frequency alone. Keep
--eval_batch_size when a run resumes: with another, other targets are drawn. The
command reads text, writes a workdir, stops and resumes like `txl train`.
`XLNetPermutationLM.from_preset` of the workdir loads the model with the best
validation score.
"""

import functools

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np

from txl_keras.data import PermutedSegments
from txl_keras.data.vocabulary import token_counts
from txl_keras.evaluation.permutation_evaluator import PermutationEvaluator
from txl_keras.metrics import bits_per_token
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.scripts import training_run
from txl_keras.scripts.options import FLAGS
from txl_keras.training.strategy import is_chief

_MODEL_DEFAULTS = {
    "num_layers": 4,
    "num_heads": 4,
    "head_dim": None,  # hidden_dim / num_heads
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "memory_length": 128,
    "clamp_length": None,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}


class Permutation(options.Options, free=()):
    """Holds options about the targets.

    Model options:
    reuse_half: Advance by half a segment per step and keep only that half in
        memory, so that segments overlap by half.
    """

    reuse_half: bool = False


data_flags.Corpus.define(corpus=options.REQUIRED)
data_flags.Tokenizer.define()
model_flags.Model.define(*_MODEL_DEFAULTS, **_MODEL_DEFAULTS)
Permutation.define()
training_flags.Loop.define(max_steps=1000, eval_every=500, checkpoint_every=500)
training_flags.Training.define(
    # Only one token in six is a target. With the small batch and the high
    # learning rate of main.py, a model learned only byte frequencies in 1,900
    # steps.
    batch_size=16,
    segment_length=128,
    learning_rate=2.5e-4,
    warmup_steps=0,
)


def main(_):
    training_run.run(_train)


def _train(workdir, strategy, stop):
    # Text, tokenizer and segments.
    text = data_flags.prepare_text()
    size, splits = text.tokenizer.vocabulary_size, text.splits
    segments = _permuted(
        training_flags.training_segments(splits["train"], _stride()),
        FLAGS.seed,
    )
    valid, test = (
        _permuted(
            training_flags.held_out_segments(
                *splits[name].head(FLAGS.max_eval_tokens), _stride()
            ),
            seed=0,
        )
        for name in ("valid", "test")
    )

    # Model and trainer.
    trainer = training_flags.build_trainer(
        functools.partial(_build_model, size), strategy
    )
    evaluator = PermutationEvaluator(
        trainer.model,
        strategy,
        FLAGS.eval_batch_size,
        segments.segment_length,
        stop=stop,
    )

    # Training.
    loop = training_run.start(
        workdir,
        text,
        f"of each {segments.segment_length:,} tokens "
        f"{segments.num_targets:,} are predicted, "
        f"{FLAGS.batch_size * segments.num_targets:,} per step",
        f"predicted {text.tokenizer.unit}",
        trainer,
        segments=segments,
        validate=functools.partial(evaluator.evaluate, valid),
        stop=stop,
        describe=_describe,
    )

    # Scores, also of a baseline that uses token frequencies of train.
    if not loop.is_finished():
        step, scores = training_run.train_and_score(
            loop, evaluator.evaluate, test
        )
        if is_chief(strategy):
            scores["guess"] = _unigram_scores(
                token_counts(splits["train"].tokens, size),
                token_counts(test.segments.tokens, size),
            )
            workdir.write_results({"step": step, **scores})
    if is_chief(strategy):
        results = workdir.read_results()
        for name, note in (
            ("valid", ""),
            ("test", ""),
            ("guess", " (a baseline that uses token frequencies alone)"),
        ):
            score = _describe(results[name]["nll"])
            share = f"{results[name]['accuracy']:.2%} correct"
            print(f"{name}: {score}, {share}{note}")
        print(training_run.written(workdir), flush=True)


def _unigram_scores(train_counts, counts):
    """Scores a baseline that predicts by the `token_counts` of train."""
    # One is added to each count, so that no token has probability 0.
    probabilities = (train_counts + 1) / (train_counts + 1).sum()
    share = counts / counts.sum()
    return {
        "nll": float(-(share * np.log(probabilities)).sum()),
        "accuracy": float(share[train_counts.argmax()]),
    }


def _build_model(vocabulary_size):
    """Builds the model of the flags."""
    backbone = XLNetBackbone(
        vocabulary_size,
        reuse_length=_stride() if FLAGS.reuse_half else None,
        dtype=training_flags.dtype_policy(),
        **model_flags.given(),
    )
    return XLNetPermutationLM(backbone)


def _describe(nll, split=None):
    """Formats nats per predicted token for the output."""
    return f"{bits_per_token(nll):.3f} bits per predicted token"


def _stride():
    """Returns the number of tokens by which each step advances."""
    length = FLAGS.segment_length
    if not FLAGS.reuse_half:
        return length
    expected = "`segment_length` must be even with `reuse_half`."
    options.refuse(length % 2, expected)
    return length // 2


def _permuted(segments, seed):
    """Makes `PermutedSegments`, whose targets the seed chooses."""
    return PermutedSegments(segments, with_next=FLAGS.reuse_half, seed=seed)


if __name__ == "__main__":
    running.run(main)

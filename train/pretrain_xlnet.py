r"""Trains an XLNet to predict tokens of a text from any other tokens.

    txl pretrain_xlnet --workdir=runs/xlnet \
        --corpus=path/to/text_or_folder
    txl pretrain_xlnet --workdir=runs/xlnet_large --corpus=FOLDER \
        --tokenizer=sentencepiece --vocabulary=spiece.model --num_layers=24 \
        --num_heads=16 --hidden_dim=1024 --intermediate_dim=4096 \
        --segment_length=512 --memory_length=384 --reuse_half --tpu=local

The objective is permutation language modelling with spans (Yang et al., 2019).
A score is the mean over the tokens that were drawn as targets; beside it is
the score of a baseline that predicts by token frequency alone. The text, the
training flags and the files in the workdir are those of main.py; in addition,
`model.keras` is the model with the best validation score, for
`keras.saving.load_model`. It stops and resumes as main.py does.
"""

import os
import sys
import tempfile

import txl_keras.scripts.quiet  # noqa: F401

import tensorflow as tf
from absl import flags

from txl_keras.data.statistics import token_counts
from txl_keras.data.statistics import unigram_scores
from txl_keras.evaluation.permutation_evaluator import PermutationEvaluator
from txl_keras.metrics import bits_per_token
from txl_keras.models import XLNetPermutationLM
from txl_keras.scripts import data_flags
from txl_keras.scripts import running
from txl_keras.scripts import training_flags
from txl_keras.scripts import training_run
from txl_keras.scripts import xlnet_flags
from txl_keras.training.compilation import describe as describe_strategy
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "workdir", None,
    "Folder of the run, a local path or gs://; its checkpoints and results are "
    "written there.", required=True,
)  # fmt: skip
data_flags.define_corpus_flags()
data_flags.define_tokenizer_flags()
xlnet_flags.define_xlnet_flags()
training_flags.define_common_flags()
# Only one token of six is a target: with the small batch and the high learning
# rate of main.py, 1,900 steps learned no more than the frequencies of bytes.
for _name, _value in {
    "batch_size": 16,
    "segment_length": 128,
    "max_steps": 1000,
    "learning_rate": 2.5e-4,
    "warmup_steps": 0,
    "eval_every": 500,
    "checkpoint_every": 500,
}.items():
    FLAGS.set_default(_name, _value)


def main(_):
    strategy = create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    with StopRequest() as stop:
        if not train(strategy, stop):
            sys.exit(EXIT_CODE)


def train(strategy, stop):
    """Trains and scores test; returns False if it was stopped."""
    run = training_run.TrainingRun(strategy, stop)
    workdir = run.workdir

    # Text, model, optimizer.
    corpus, tokenizer, splits = data_flags.prepare_text()
    vocabulary_size = tokenizer.vocabulary_size
    segments = xlnet_flags.training_segments(splits["train"], vocabulary_size)
    valid, test = (
        xlnet_flags.permuted(
            training_flags.held_out_segments(
                *splits[name].head(FLAGS.max_eval_tokens), xlnet_flags.stride()
            ),
            vocabulary_size,
            seed=0,
        )
        for name in ("valid", "test")
    )

    def build_model():
        return xlnet_flags.build_model(
            vocabulary_size, training_flags.dtype_policy()
        )

    model = run.build_trainer(build_model).model
    evaluator = PermutationEvaluator(
        model, strategy, FLAGS.eval_batch_size, stop=stop
    )

    # Start, resume, or find that the run is finished.
    run.begin_loop(
        segments,
        lambda: evaluator.evaluate(valid),
        tokenizer,
        splits,
        {
            **training_flags.result_settings(),
            **xlnet_flags.objective_settings(),
        },
        describe=_bits,
        unit=f"predicted {tokenizer.unit}",
    )
    run.restore(
        lambda: _describe_start(workdir, corpus, splits, run.trainer, segments)
    )
    if run.is_finished():
        run.log(_describe_results(workdir))
        return True
    if not run.train(segments):
        return False

    # Finish with the best weights.
    scored = run.score_best(lambda: evaluator.evaluate(test))
    if scored is None:
        return False
    best_step, scores = scored
    if is_chief(strategy):
        _save_model(workdir)
        scores["guess"] = _guess(splits, test, vocabulary_size)
        workdir.write_results({"step": best_step, **scores})
        run.log(_describe_results(workdir))
    wait_for_all(strategy)
    return True


def _save_model(workdir):
    """Saves the best weights as model.keras."""
    # Copied to one device, because the trained model may be on several.
    model, _ = workdir.load_model("best", XLNetPermutationLM)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        tf.io.gfile.copy(path, workdir.file("model.keras"), overwrite=True)


def _guess(splits, test, vocabulary_size):
    """Scores test with token frequencies of train as the predictions."""
    train, test = (
        token_counts(tokens, vocabulary_size)
        for tokens in (splits["train"].tokens, test.segments.tokens)
    )
    return unigram_scores(train, test)


def _describe_start(workdir, corpus, splits, trainer, segments):
    tokens = ", ".join(
        f"{len(s.tokens):,} {name}" for name, s in splits.items()
    )
    model = trainer.model
    return (
        f"{workdir.path}: {corpus.name}, {tokens} tokens, a vocabulary of "
        f"{model.backbone.vocabulary_size:,}; {model.count_params():,} "
        f"weights, {FLAGS.precision}\n"
        f"{describe_strategy(trainer.strategy)}; of each "
        f"{segments.segment_length:,} tokens {segments.num_targets:,} are "
        f"predicted, {FLAGS.batch_size * segments.num_targets:,} per step"
    )


def _bits(nll):
    return f"{bits_per_token(nll):.3f} bits per predicted token"


def _describe_results(workdir):
    results = workdir.read_results()
    lines = [
        f"{split}: {_bits(results[split]['nll'])}, "
        f"{results[split]['accuracy']:.2%} correct"
        for split in ("valid", "test", "guess")
    ]
    lines[-1] += " (a baseline that uses token frequencies alone)"
    return "\n".join(
        [
            *lines,
            f"Written to {workdir.path}: model.keras (step {results['step']}), "
            "learning_curve.png, metrics.jsonl, results.json, events "
            "(TensorBoard)",
        ]
    )


if __name__ == "__main__":
    running.run(main)

r"""Trains a text classifier on the backbone of a language model.

    txl finetune --workdir=runs/mails --initialize_from=runs/lm \
        --train_file=mails.tsv --test_file=more_mails.tsv
    txl finetune --workdir=runs/imdb --initialize_from=runs/lm \
        --tfds_name=imdb_reviews --epochs=3 --max_text_tokens=1024
    txl finetune --workdir=runs/scratch --tokenizer=words \
        --min_count=2 --train_file=reviews.csv --label_column=stars

Texts of any length are read whole, segment by segment with memory, unless
--max_text_tokens limits them. --initialize_from names a trained model, such as
the workdir of a run, and takes its weights, sizes and tokenizer. With
--from_scratch it takes everything except the weights, as a baseline that shows
the gain from the pretrained weights.

Files are .tsv, .csv or .jsonl (or .gz of these). Without --valid_file, a tenth
of train is split off by a hash of each text, but no label leaves train.
Training ends when the validation loss has not fallen for --patience epochs; the
best weights are kept.

Writes to the workdir: metrics.jsonl (one line per epoch), model (the best
weights, for `TransformerXLTextClassifier.from_preset`), results.json (accuracy,
F1 and confusion matrix, also of the texts that are longer than a segment) and
export/STEP, a SavedModel that takes raw text, if it can contain the tokenizer.
"""

import os
import sys

import txl_keras.scripts.quiet  # noqa: F401

import keras
import numpy as np
import tensorflow as tf

from txl_keras.data import Corpus
from txl_keras.data import TextBatches
from txl_keras.data import read_labelled_texts
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.preparation import token_folder
from txl_keras.evaluation.classification import classification_scores
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models.transformer_xl_text_classifier import POOLINGS
from txl_keras.optimizers import build_optimizer
from txl_keras.output_folders import check_new
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts import training_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.serving import export_classifier
from txl_keras.serving.graph_tokenizers import can_be_in_graph
from txl_keras.training.schedules import build_schedule
from txl_keras.workdir import Workdir

_VALID_SHARE = 0.1


class Finetune(options.Options):
    """Holds the options of this command.

    workdir: New folder to write the run to.
    train_file: File of texts and labels to train on.
    valid_file: File of texts and labels for validation. Default: a tenth of
        train.
    test_file: File of texts and labels to score at the end. Default: none.
    tfds_name: Dataset of TensorFlow Datasets to use instead of files, such as
        imdb_reviews.
    text_column: Name of the column of texts. For a .tsv or .csv file without
        column names give --text_column and --label_column as numbers from 0.
    label_column: Name of the column of labels, or its number as for
        --text_column.
    from_scratch: Use only the sizes and the tokenizer of --initialize_from, and
        start from random weights.
    pooling: Hidden states to classify: last takes the state of the last token,
        mean the mean over all tokens.
    max_text_tokens: Most tokens of a text to read; the rest is cut off.
        Default: no limit.
    epochs: Most epochs to train.
    patience: Epochs without a lower validation loss after which training ends.

    Data options:
    segment_length: Tokens per segment. Default: as in the run of
        --initialize_from, or 128.
    batch_size: Most texts per step; batches of long texts are smaller.

    Optimization options:
    learning_rate: Peak learning rate of adamw. The rate rises during the first
        tenth of the steps, then decays linearly to 0.
    seed: Seed of the initial weights, the order of the texts and dropout.
    """

    workdir: str = options.REQUIRED
    train_file: options.path = None
    valid_file: options.path = None
    test_file: options.path = None
    tfds_name: str = None
    text_column: str = "text"
    label_column: str = "label"
    from_scratch: bool = False
    pooling: options.one_of(POOLINGS) = "last"
    max_text_tokens: options.integer(1) = None
    epochs: options.integer(1) = 5
    patience: options.integer(0) = 2
    segment_length: options.integer(1) = None
    batch_size: options.integer(1) = 16
    learning_rate: float = 5e-4
    seed: options.integer(0, 2**32 - 1) = 0


Finetune.define()
data_flags.Corpus.define("data_dir")
data_flags.Tokenizer.define()
trained_model.OriginOption.define()
model_flags.define_model_flags(has_softmax=False)
training_flags.Training.define("precision")


def main(_):
    workdir = Workdir(FLAGS.workdir)
    check_new("workdir", workdir.path)  # the training cannot resume
    options.refuse(
        FLAGS.from_scratch and not FLAGS.initialize_from,
        "`from_scratch` must be left out without --initialize_from, whose "
        "sizes and tokenizer it takes.",
    )
    keras.utils.set_random_seed(FLAGS.seed)

    # Texts, labels, tokens.
    origin = trained_model.given_origin()
    texts = _read_texts()
    names = texts["train"].label_names()
    if len(names) < 2:
        raise ValueError(
            f"Texts must have at least two labels. Received: {names} in "
            f"{texts['train'].name}"
        )
    labels = {split: part.label_ids(names) for split, part in texts.items()}
    if origin:
        tokenizer = origin.tokenizer
    else:
        lines = [f"{text}\n".encode() for text in texts["train"].texts]
        corpus = Corpus(texts["train"].name, dict.fromkeys(SPLITS, lines))
        folder = token_folder(FLAGS.data_dir)
        tokenizer = data_flags.make_tokenizer(corpus, folder)
    token_ids = {
        split: [tokenizer.encode(text) for text in part.texts]
        for split, part in texts.items()
    }

    # Model.
    origin_flags = origin.flags if origin else {}
    language_model = model_flags.build_model(
        tokenizer.vocabulary_size,
        np.concatenate(token_ids["train"]),
        training_flags.dtype_policy(),
        origin,
        load_weights=not FLAGS.from_scratch,
    )
    model = TransformerXLTextClassifier(
        language_model.backbone,
        len(names),
        FLAGS.segment_length or origin_flags.get("segment_length") or 128,
        FLAGS.pooling,
        tokenizer,
    )
    batches = {
        split: TextBatches(
            [ids[: FLAGS.max_text_tokens] for ids in token_ids[split]],
            labels[split],
            FLAGS.batch_size,
            model.segment_length,
            seed=FLAGS.seed if split == "train" else None,
        )
        for split in texts
    }
    steps = batches["train"].steps_per_epoch
    model.compile(_build_optimizer(FLAGS.epochs * steps))
    if origin and not FLAGS.from_scratch:
        print(f"{origin.description}.")
    print(
        f"{workdir.path}: classes {names}; {model.count_params():,} weights, "
        f"{FLAGS.precision}; segments of {model.segment_length}, memory of "
        f"{model.backbone.memory_length}"
    )
    for split, part in token_ids.items():
        print(f"{split}: {len(part):,} texts, {sum(map(len, part)):,} tokens")

    # Train.
    stopping = keras.callbacks.EarlyStopping(
        patience=FLAGS.patience, restore_best_weights=True
    )
    tf.io.gfile.makedirs(workdir.path)
    writing = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: workdir.append_metrics(
            {"step": (epoch + 1) * steps, "epoch": epoch + 1, **logs}
        )
    )
    history = model.fit(
        batches["train"].dataset(),
        epochs=FLAGS.epochs,
        steps_per_epoch=steps,
        shuffle=False,  # the batches are shuffled already
        validation_data=batches["valid"].dataset(
            batches["valid"].steps_per_epoch
        ),
        callbacks=[keras.callbacks.TerminateOnNaN(), stopping, writing],
        verbose=1 if sys.stdout.isatty() else 2,
    ).history
    # If the last step diverges, only val_loss shows it.
    losses = np.array([history["loss"], history["val_loss"]])
    is_finite = np.isfinite(losses).all(axis=0)
    epoch = stopping.best_epoch + 1
    if not is_finite.all():
        bad = int(is_finite.argmin())
        problem = (
            f"The loss is not finite in epoch {bad + 1}: train "
            f"{losses[0, bad]}, valid {losses[1, bad]}. Try a lower learning "
            f"rate. Received: --learning_rate={FLAGS.learning_rate}"
        )
        if not is_finite[epoch - 1]:
            raise FloatingPointError(problem)
        print(f"{problem}\nThe weights of epoch {epoch} are kept.")

    # Score and export the best weights.
    results = {"step": epoch * steps, "epoch": epoch}
    training = {
        **{flag.name: flag.value for flag in options.defined_flags()},
        "step": results["step"],
        "labels": names,
        "texts": {split: part.fingerprint() for split, part in texts.items()},
    }
    model.save_to_preset(workdir.model, training)
    for split in ("valid", "test"):
        if split in texts:
            is_long = [len(x) > model.segment_length for x in token_ids[split]]
            found = _scores(
                model, batches[split], labels[split], names, is_long
            )
            results[split] = found
            print(
                f"{split}: accuracy {found['accuracy']:.4f}, F1 "
                f"{found['f1']:.4f}, loss {found['loss']:.4f} nats"
            )
    workdir.write_results(results)
    print(f"Written to {workdir.path}: model, metrics.jsonl, results.json")
    if not can_be_in_graph(tokenizer):
        name = type(tokenizer).__name__
        print(f"No export: no SavedModel can contain a {name}.")
        return
    path = workdir.file(f"export/{results['step']}")
    export_classifier(
        model,
        tokenizer,
        names,
        path,
        FLAGS.max_text_tokens,
        {"step": results["step"]},
        {"config.json": os.path.join(workdir.model, "config.json")},
    )
    print(f"Written to {path} (SavedModel of the best epoch)")


def _read_texts():
    """Reads `LabelledTexts` by split; test is optional."""
    columns = FLAGS.text_column, FLAGS.label_column
    paths = {split: FLAGS[f"{split}_file"].value for split in SPLITS}
    options.refuse(
        any(paths.values()) if FLAGS.tfds_name else not FLAGS.train_file,
        "Either `train_file` or `tfds_name` must be given; `valid_file` and "
        "`test_file` only go with `train_file`.",
    )
    if FLAGS.tfds_name:
        # Imported here, because TensorFlow Datasets may not be installed.
        from txl_keras.data.corpora import tfds_text

        texts = tfds_text.load_labelled_texts(
            FLAGS.tfds_name, FLAGS.data_dir, *columns
        )
    else:
        texts = {
            split: read_labelled_texts(path, *columns)
            for split, path in paths.items()
            if path
        }
    if "valid" not in texts:
        texts["train"], texts["valid"] = texts["train"].split(_VALID_SHARE)
    return texts


def _build_optimizer(max_steps):
    schedule = build_schedule(
        "linear", FLAGS.learning_rate, max_steps, max_steps // 10
    )
    optimizer = build_optimizer("adamw", schedule, weight_decay=0.01)
    optimizer.global_clipnorm = 1.0
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def _scores(model, batches, label_ids, label_names, is_long):
    """Scores all texts, and separately texts longer than a segment."""
    logits = model.predict(batches.dataset(batches.steps_per_epoch), verbose=0)
    logits = logits[np.argsort(batches.order())]  # in the order of the texts
    scores = classification_scores(label_ids, logits, label_names)
    if any(is_long):
        scores["longer_than_segment"] = classification_scores(
            np.array(label_ids)[is_long], logits[is_long], label_names
        )
    return scores


if __name__ == "__main__":
    running.run(main)

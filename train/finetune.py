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
--from_scratch it takes everything except the weights: a baseline that shows
what the pretrained weights add.

Files are .tsv, .csv or .jsonl (or .gz of these). Without --valid_file, the
share --valid_share of train is split off by a hash of each text. Training ends
when --monitor has not improved for --patience epochs; the best weights are
kept.

Writes to the workdir: config.json, tokenizer.json, metrics.jsonl (one line per
epoch), model (the best weights, for `TransformerXLTextClassifier.from_preset`
of the workdir), results.json (accuracy, F1 and confusion matrix, also of the
texts that are longer than a segment) and export/STEP, a SavedModel that takes
raw text.
"""

import itertools

import txl_keras.scripts.quiet  # noqa: F401

import keras
import numpy as np

from txl_keras.checks import check_vocabulary
from txl_keras.data import Corpus
from txl_keras.data import TextBatches
from txl_keras.data import read_labelled_texts
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.corpora.files import is_file
from txl_keras.data.corpora.files import is_remote
from txl_keras.data.preparation import token_folder
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.evaluation.classification import classification_scores
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models.transformer_xl_text_classifier import POOLINGS
from txl_keras.scripts import data_flags
from txl_keras.scripts import model_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import trained_model
from txl_keras.scripts import training_flags
from txl_keras.scripts.options import FLAGS
from txl_keras.serving import export_classifier
from txl_keras.training.checkpointing import copies
from txl_keras.training.optimizers import build_optimizer
from txl_keras.training.progress import progress_bar
from txl_keras.training.schedules import build_schedule
from txl_keras.training.updates import takes_weight_decay
from txl_keras.weights import weights_by_name
from txl_keras.workdir import Workdir


class Finetune(options.Options):
    """Holds the options of this command.

    workdir: New folder to write the run to.
    train_file: File of texts and labels to train on.
    valid_file: File of texts and labels for validation. Default: a share of
        train.
    test_file: File of texts and labels to score at the end. Default: none.
    tfds_name: Dataset of TensorFlow Datasets to use instead of files, such as
        imdb_reviews.
    text_column: Name of the column of texts. For a .tsv or .csv file without
        column names give --text_column and --label_column as numbers from 0.
    label_column: Name of the column of labels, or its number as for
        --text_column.
    valid_share: Share of the training texts to validate on, between 0 and 1, if
        there is no other validation set.
    from_scratch: Use only the sizes and the tokenizer of --initialize_from, and
        start from random weights.
    pooling: Hidden states to classify: that of the last token, or the mean over
        all.
    max_text_tokens: Most tokens of a text to read; the rest is cut off.
        Default: no limit.
    epochs: Most epochs to train.
    patience: Epochs without an improvement of --monitor after which training
        ends.
    monitor: Validation score that selects the best weights and ends training.
    max_batch_tokens: Most tokens per step, which bounds its memory: long texts
        come in smaller batches.
    class_weight: Weights of classes in the training loss; balanced gives every
        class the same total weight.

    Data options:
    segment_length: Tokens per segment. Default: as in the run of
        --initialize_from, or 128.
    batch_size: Most texts per step.

    Optimization options:
    learning_rate: Peak learning rate of adamw: it rises for a tenth of all
        steps, and then decays linearly to 0.
    seed: Seed of the initial weights, the order of the texts and dropout.
    """

    workdir: str = options.REQUIRED
    train_file: options.path = None
    valid_file: options.path = None
    test_file: options.path = None
    tfds_name: str = None
    text_column: str = "text"
    label_column: str = "label"
    valid_share: float = 0.1
    from_scratch: bool = False
    pooling: options.one_of(POOLINGS) = "last"
    max_text_tokens: options.integer(1) = None
    epochs: options.integer(1) = 5
    patience: options.integer(0) = 2
    monitor: options.one_of(["loss", "f1", "accuracy"]) = "loss"
    max_batch_tokens: options.integer(1) = 16384
    class_weight: options.one_of(["none", "balanced"]) = "none"
    segment_length: options.integer(1) = None
    batch_size: options.integer(1) = 16
    learning_rate: float = 5e-4
    seed: options.integer(0, 2**32 - 1) = 0


Finetune.define()
data_flags.Corpus.define("data_dir")
data_flags.Tokenizer.define()
trained_model.Origin.define()
model_flags.define_model_flags(has_softmax=False)
training_flags.Training.define("precision")


def main(_):
    _check_flags()
    workdir = Workdir(FLAGS.workdir)
    check_can_write("workdir", workdir.path)
    options.refuse(
        workdir.is_claimed(),
        "`workdir` must be new: it holds a run, and the training of a "
        "classifier cannot resume.",
    )
    keras.utils.set_random_seed(FLAGS.seed)
    origin = FLAGS.initialize_from and trained_model.TrainedOrigin()

    # Texts, labels, tokens.
    texts = _read_texts()
    label_names = texts["train"].label_names()
    if len(label_names) < 2:
        raise ValueError(
            f"Texts must have at least two labels. Received: {label_names} in "
            f"{texts['train'].name}"
        )
    label_ids = {split: texts[split].label_ids(label_names) for split in texts}
    if origin:
        tokenizer = origin.load_tokenizer()
    else:
        lines = [f"{text}\n".encode() for text in texts["train"].texts]
        corpus = Corpus(texts["train"].name, dict.fromkeys(SPLITS, lines))
        folder = token_folder(FLAGS.data_dir)
        tokenizer = data_flags.make_tokenizer(corpus, folder)
    whole = {split: _encode(tokenizer, texts[split]) for split in texts}
    token_ids = {
        split: [ids[: FLAGS.max_text_tokens] for ids in whole[split]]
        for split in texts
    }

    # Model and optimizer.
    model = _build_model(origin, tokenizer, token_ids["train"], label_names)
    del origin  # and the memory of its weights
    batches = {
        split: TextBatches(
            token_ids[split],
            label_ids[split],
            FLAGS.batch_size,
            model.segment_length,
            FLAGS.max_batch_tokens,
            seed=FLAGS.seed if split == "train" else None,
        )
        for split in texts
    }
    steps = batches["train"].steps_per_epoch
    model.compile(_build_optimizer(model, FLAGS.epochs * steps))
    config = {
        "flags": {flag.name: flag.value for flag in options.defined_flags()},
        "labels": label_names,
        "class_name": type(model).__name__,
        "model": model.get_config(),
        "tokenizer": tokenizer_hash(tokenizer),
        "corpus": {split: texts[split].name for split in texts},
        "data": {split: texts[split].fingerprint() for split in texts},
    }
    workdir.claim(config, tokenizer)
    print(
        f"{workdir.path}: classes {label_names}; {model.count_params():,} "
        f"weights, {FLAGS.precision}; segments of {model.segment_length}, "
        f"memory of {model.backbone.memory_length}"
    )
    for split in texts:
        sizes = np.array([len(ids) for ids in token_ids[split]])
        long = np.mean(sizes > model.segment_length)
        print(
            f"{split}: {len(sizes):,} texts, {sizes.sum():,} tokens, "
            f"{long:.0%} longer than a segment",
            flush=True,
        )

    # Train.
    valid = batches["valid"]
    with progress_bar(FLAGS.epochs * steps, "step") as on_progress:
        callbacks = _callbacks(workdir, model, steps, on_progress)
        history = model.fit(
            batches["train"].dataset(),
            epochs=FLAGS.epochs,
            steps_per_epoch=steps,
            shuffle=False,  # the batches are shuffled already
            validation_data=valid.dataset(valid.steps_per_epoch),
            class_weight=_class_weight(label_ids["train"]),
            callbacks=callbacks,
            verbose=2,
        )
    for name in ("loss", "val_loss"):  # the last step may ruin only val_loss
        losses = history.history[name]
        if not np.isfinite(losses).all():
            raise FloatingPointError(
                f"The loss is {losses[-1]} in epoch {len(losses)}. Try a lower "
                "learning rate. Received: --learning_rate="
                f"{FLAGS.learning_rate}"
            )

    # Score and export the best.
    print("Scoring and exporting the best weights.", flush=True)
    step = workdir.restore_weights(model, "best")
    results = {"step": step, "epoch": step // steps}
    for split in ("valid", "test"):
        if split in texts:
            results[split] = _scores(
                model,
                batches[split],
                label_ids[split],
                label_names,
                whole[split],
            )
    export_classifier(
        model,
        tokenizer,
        label_names,
        workdir.file(f"export/{results['step']}"),
        FLAGS.max_text_tokens,
        {"step": results["step"]},
        {"config.json": workdir.file("config.json")},
    )
    workdir.write_results(results)
    print(_describe_results(workdir, results))


def _scores(model, batches, label_ids, label_names, token_ids):
    """Scores all texts, and those longer than a segment."""
    logits = model.predict(batches.dataset(batches.steps_per_epoch), verbose=0)
    logits = logits[np.argsort(batches.order())]  # as the texts are
    scores = classification_scores(label_ids, logits, label_names)
    is_long = [len(ids) > model.segment_length for ids in token_ids]
    if any(is_long):
        scores["longer_than_segment"] = classification_scores(
            np.array(label_ids)[is_long], logits[is_long], label_names
        )
    return scores


def _check_flags():
    """Checks the flags before anything is read."""
    paths = {f"{split}_file": FLAGS[f"{split}_file"].value for split in SPLITS}
    for name, path in paths.items():
        is_wrong = path is not None and not is_file(path)
        options.refuse(is_wrong, f"`{name}` must be a file.")
    options.refuse(
        (FLAGS.train_file is None) == (FLAGS.tfds_name is None),
        "Either `train_file` or `tfds_name` must be given.",
    )
    options.refuse(
        FLAGS.tfds_name and (FLAGS.valid_file or FLAGS.test_file),
        "`valid_file` and `test_file` cannot be given with `tfds_name`, whose "
        "own splits are used.",
    )
    options.refuse(
        FLAGS.valid_file and FLAGS["valid_share"].present,
        "`valid_share` and `valid_file` exclude each other.",
    )
    options.refuse(
        FLAGS.from_scratch and FLAGS.initialize_from is None,
        "`from_scratch` can only be given with `initialize_from`, whose "
        "weights it ignores.",
    )
    if FLAGS.initialize_from is not None:
        training_flags.check_inherited_flags()


def _read_texts():
    """Reads `LabelledTexts` by split; test is optional."""
    columns = FLAGS.text_column, FLAGS.label_column
    if FLAGS.tfds_name:
        # Imported here, because TensorFlow Datasets may not be installed.
        from txl_keras.data.corpora import tfds_text

        texts = tfds_text.load_labelled_texts(
            FLAGS.tfds_name, FLAGS.data_dir, *columns
        )
    else:
        paths = {split: FLAGS[f"{split}_file"].value for split in SPLITS}
        texts = {
            split: read_labelled_texts(path, *columns)
            for split, path in paths.items()
            if path
        }
    if "valid" not in texts:
        texts["train"], texts["valid"] = texts["train"].split(FLAGS.valid_share)
    return texts


def _encode(tokenizer, texts):
    token_ids = [tokenizer.encode(text) for text in texts.texts]
    for i, ids in enumerate(token_ids):
        if not len(ids):
            raise ValueError(
                "Every text must have at least one token. Received: "
                f"{texts.texts[i]!r:.40} at {texts.place(i)}"
            )
    return token_ids


def _build_model(origin, tokenizer, train_ids, label_names):
    origin_flags = origin.flags if origin else {}
    language_model = model_flags.build_model(
        tokenizer.vocabulary_size,
        np.concatenate(train_ids),
        training_flags.dtype_policy(),
        origin and origin.read_model_config(),
    )
    if origin:
        check_vocabulary(tokenizer, language_model.backbone.vocabulary_size)
        if not FLAGS.from_scratch:
            print(f"{origin.restore_weights(language_model)}.")
    return TransformerXLTextClassifier(
        language_model.backbone,
        len(label_names),
        FLAGS.segment_length or origin_flags.get("segment_length") or 128,
        FLAGS.pooling,
    )


def _build_optimizer(model, max_steps):
    optimizer = build_optimizer(
        "adamw",
        build_schedule(
            "linear", FLAGS.learning_rate, max_steps, max_steps // 10
        ),
        weight_decay=0.01,
    )
    optimizer.global_clipnorm = 1.0
    optimizer.exclude_from_weight_decay(
        [w for w in model.trainable_variables if not takes_weight_decay(w)]
    )
    return optimizer


def _class_weight(label_ids):
    """Returns class weights with a mean of 1 over the texts, or `None`."""
    if FLAGS.class_weight == "none":
        return None
    counts = np.bincount(label_ids)
    return dict(enumerate(len(label_ids) / (len(counts) * counts)))


def _callbacks(workdir, model, steps_per_epoch, on_progress):
    stopping = keras.callbacks.EarlyStopping(
        patience=FLAGS.patience,
        monitor=f"val_{FLAGS.monitor}",
        mode="min" if FLAGS.monitor == "loss" else "max",
    )
    done = itertools.count(1)

    def on_step(batch, logs):
        on_progress(next(done))
        if not is_remote(workdir.path):  # where each look takes time
            workdir.when_present(lambda: None)

    def write(epoch, logs):
        step = (epoch + 1) * steps_per_epoch
        line = {"step": step, "epoch": epoch + 1, **logs}
        workdir.when_present(lambda: workdir.append_metrics(line))
        if stopping.best_epoch == epoch:
            weights = copies(weights_by_name(model))
            workdir.when_present(lambda: workdir.save_best(weights, step))

    return [
        keras.callbacks.TerminateOnNaN(),
        stopping,
        keras.callbacks.LambdaCallback(
            on_epoch_end=write, on_train_batch_end=on_step
        ),
    ]


def _describe_results(workdir, results):
    lines = []
    for split in ("valid", "test"):
        scores = results.get(split, {})
        for name, part in (
            (split, scores),
            ("  longer than a segment", scores.get("longer_than_segment")),
        ):
            if part:
                lines.append(
                    f"{name}: accuracy {part['accuracy']:.4f}, F1 "
                    f"{part['f1']:.4f}, loss {part['loss']:.4f} nats "
                    f"({np.sum(part['confusion']):,} texts)"
                )
    lines.append(
        f"Written to {workdir.path}: model, metrics.jsonl, results.json, "
        f"export/{results['step']} (SavedModel of the best epoch)"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    running.run(main)

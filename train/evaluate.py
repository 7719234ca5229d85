r"""Measures bits per character and perplexity of a run.

    python train/evaluate.py --workdir=runs/quickstart --split=test
    python train/evaluate.py --workdir=runs/enwik8_base \
        --flagfile=train/configs/evaluation/enwik8_base.flags
    python train/evaluate.py --workdir=runs/quickstart --corpus=my_text.txt \
        --split=all --token_nll --position_curve
    python train/evaluate.py --workdir=runs/vanilla --stride=1 \
        --max_eval_tokens=100000

Every token of the split but the first is scored once, whatever the batch size.
Each row reads a part of the split and begins with an empty memory, which costs
its first tokens some bits. --warmup=memory first reads as many segments before
the row's part as memory holds; --warmup=exact as many as what is in memory can
depend on, L times that: then the result is that of --batch_size=1.

A model without memory sees little at the beginning of each segment. --stride=1
predicts every token from segment_length tokens before it, by a window of its
own: the evaluation of Al-Rfou et al., which takes segment_length times as long.
--stride=K predicts K tokens by a window, in a K-th of that.

Written to the workdir: evaluation_SPLIT.json, a list of results, one for each
checkpoint, text and settings, the newest last; with --token_nll the nats of
every token; with --position_curve a picture.
"""

import contextlib
import os
import time

import numpy as np
import tensorflow as tf
from absl import flags
from tqdm import tqdm

from txl_keras.checks import check_integer
from txl_keras.checks import shown
from txl_keras.data import Segments
from txl_keras.data import SlidingWindows
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.data.corpora.corpus import WHOLE
from txl_keras.data.preparation import prepare
from txl_keras.data.preparation import token_folder
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import check_slides
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.evaluation.plots import plot_position_curve
from txl_keras.evaluation.report import add_bits_per_byte
from txl_keras.evaluation.report import describe
from txl_keras.evaluation.report import position_curve
from txl_keras.evaluation.report import with_result
from txl_keras.evaluation.token_file import create_token_file
from txl_keras.json_files import MAX_VOCABULARY_BYTES
from txl_keras.json_files import read_json
from txl_keras.scripts import data_flags
from txl_keras.scripts import running
from txl_keras.training.checkpointing import saved_steps
from txl_keras.training.workdir import Workdir
from txl_keras.training.workdir import write_json

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"], "Best by valid, or newest."
)
# Default: what they were in training.
data_flags.define_corpus_flags(required=False)
flags.adopt_module_key_flags(data_flags)
flags.DEFINE_enum(
    "split", "test", [*SPLITS, WHOLE],
    f"Which text; {WHOLE}: a --corpus of your own as it is, not cut.",
)  # fmt: skip
flags.DEFINE_integer(
    "memory_length", None, "Default: as in training.", lower_bound=0
)
flags.DEFINE_integer(
    "segment_length", None, "Default: as in training.", lower_bound=1
)
flags.DEFINE_integer(
    "stride", None,
    "Tokens that a window slides on, of which alone it has scores; needs "
    "memory_length=0. Default: segments side by side.", lower_bound=1,
)  # fmt: skip
flags.DEFINE_bool(
    "same_length", None, "Every token sees exactly memory_length tokens back."
)
flags.DEFINE_integer(
    "clamp_length", None, "Distances beyond it count as it.", lower_bound=1
)
flags.DEFINE_integer(
    "max_eval_tokens", None, "Score only the first tokens. Default: all.",
    lower_bound=2,
)  # fmt: skip
flags.DEFINE_integer("batch_size", 16, "Rows.", lower_bound=1)
flags.DEFINE_enum(
    "warmup", "none", ["none", "memory", "exact"],
    "Text that a row reads before its own, to fill its memory.",
)  # fmt: skip
flags.DEFINE_bool(
    "token_nll", False,
    "Write the nats of every token, in the order of the text: a NumPy file of "
    "float32, NaN where a token has no score.",
)  # fmt: skip
flags.DEFINE_string(
    "token_nll_path", None,
    "Where to, a local file. Default: WORKDIR/evaluation_SPLIT_tokens.npy. "
    "Sets --token_nll.",
)  # fmt: skip
flags.DEFINE_bool(
    "position_curve", False,
    "Add scores by the position of a token in its document, and draw them: "
    "WORKDIR/evaluation_SPLIT_positions.png.",
)  # fmt: skip

_ATTENTION_FLAGS = ("same_length", "clamp_length")
# Of a text: whether another is meant. Where its files lie is not of it.
_TEXT_FLAGS = ("corpus", "document_separator", "text_key")


def main(_):
    workdir = Workdir(FLAGS.workdir)
    config = workdir.read_config()
    # Can the scores be written, once they are computed?
    workdir.check_writable()
    _read_results(workdir)
    tokenizer = workdir.load_tokenizer()
    model, checkpoint = _load_model(workdir)
    settings = _settings(model.backbone, config["flags"])
    name, text, split = _prepare_text(config, tokenizer)
    tokens, documents = split.head(FLAGS.max_eval_tokens)
    segments = _segments(tokens, documents, settings)
    result = {"split": FLAGS.split, **checkpoint, **text, **settings}
    with _token_nll(workdir, len(tokens)) as (nll, path):
        scores = _score(model, segments, settings["memory_length"], nll)
        result |= path | add_bits_per_byte(scores, tokenizer, tokens)
        if FLAGS.position_curve:
            result["position_curve"] = position_curve(nll, documents)
    _write(workdir, result, tokenizer.unit)
    print(f"{name}, {FLAGS.split}: {describe(result, tokenizer)}")
    print(f"{result['tokens_per_second']:,.0f} tokens/s.")
    for written in _files(workdir, result):
        print(f"Written to {written}")


def _read_results(workdir):
    """The results of earlier evaluations of the split."""
    path = workdir.file(f"evaluation_{FLAGS.split}.json")
    if not tf.io.gfile.exists(path):
        return []
    results = read_json(path, (dict, list), MAX_VOCABULARY_BYTES)
    if isinstance(results, list):
        for result in results:
            if not isinstance(result, dict):
                raise ValueError(
                    f"{path} is damaged: it must be a list of results. Move "
                    f"it away. Received: {shown(result)}"
                )
    return results


def _load_model(workdir):
    """The model, and which checkpoint it is of."""
    overrides = {
        name: FLAGS[name].value
        for name in _ATTENTION_FLAGS
        if FLAGS[name].value is not None
    }
    config = workdir.read_model_config()["backbone"]["config"]
    for name, value in overrides.items():
        if name not in config:
            raise ValueError(
                f"`{name}` is for models with attention. Received: "
                f"{name}={value}, and an LSTM"
            )
    model, step = workdir.load_model(FLAGS.checkpoint, **overrides)
    # Where there is no best one, the newest was taken.
    is_best = FLAGS.checkpoint == "best" and step in saved_steps(workdir.best)
    return model, {"checkpoint": "best" if is_best else "latest", "step": step}


def _prepare_text(config, tokenizer):
    """The name of the text; which it is, if not the run's; and its split."""
    of_run = config["corpus"]
    options = data_flags.corpus_options(of_run)
    if options["corpus"] is None:
        raise ValueError(
            "`corpus` must be given: the model was not trained here. "
            "Received: --corpus=None"
        )
    is_of_run = all(options[n] == of_run.get(n) for n in _TEXT_FLAGS)
    if FLAGS.split == WHOLE and _is_same(
        options["corpus"], of_run.get("corpus")
    ):
        raise ValueError(
            f"`split` {WHOLE} is for text that the model was not trained on. "
            f"Received: --corpus={options['corpus']}, the text of the run"
        )
    corpus = data_flags.load_corpus(options, whole=FLAGS.split == WHOLE)
    folder = token_folder(options["data_dir"])
    split = prepare(corpus, tokenizer, folder, [FLAGS.split])[FLAGS.split]
    expected = config["data"].get(FLAGS.split)
    if split.fingerprint() == expected:  # wherever it lies now
        return f"{corpus.name} (the text of the run)", {}, split
    if expected and is_of_run:
        raise ValueError(
            f"The {FLAGS.split} split of {corpus.name} is not what it "
            "was when the run began: the text was changed, or Python was "
            f"updated. Expected {expected}. Received: {split.fingerprint()}"
        )
    text = {"corpus": options["corpus"], "fingerprint": split.fingerprint()}
    name = f"{corpus.name} (not the text of the run)" if of_run else corpus.name
    return name, text, split


def _is_same(path, other):
    """Whether two corpora are one, whatever they are called."""
    return other is not None and os.path.realpath(path) == os.path.realpath(
        other
    )


def _settings(backbone, of_run):
    """How the text is read: what JSON shall say."""
    segment_length = FLAGS.segment_length or of_run.get("segment_length")
    check_integer("segment_length", segment_length, 1)
    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = backbone.memory_length
    if FLAGS.stride:
        check_slides(backbone, memory_length)
    warmup = 0
    if FLAGS.warmup == "memory":
        warmup = -(-memory_length // segment_length)
    elif FLAGS.warmup == "exact":
        warmup = warmup_segments(backbone, segment_length, memory_length)
    return {
        "max_eval_tokens": FLAGS.max_eval_tokens,
        "reset_documents": of_run.get("reset_documents", False),
        "batch_size": FLAGS.batch_size,
        "segment_length": segment_length,
        "stride": FLAGS.stride,
        "warmup": FLAGS.warmup,
        "warmup_segments": warmup,
        "memory_length": memory_length,
        **{
            name: getattr(backbone, name)
            for name in _ATTENTION_FLAGS
            if hasattr(backbone, name)
        },
    }


def _segments(tokens, documents, settings):
    sizes = settings["batch_size"], settings["segment_length"]
    resets = {
        "documents": documents,
        "reset_documents": settings["reset_documents"],
    }
    if settings["stride"]:
        return SlidingWindows(tokens, *sizes, settings["stride"], **resets)
    return Segments(
        tokens,
        *sizes,
        drop_remainder=False,
        warmup_segments=settings["warmup_segments"],
        **resets,
    )


@contextlib.contextmanager
def _token_nll(workdir, num_tokens):
    """An array for the nats of all tokens, and what JSON says of its file.

    In memory where no file is asked for, 4 bytes a token: what is not finite
    is found there.
    """
    if not FLAGS.token_nll and FLAGS.token_nll_path is None:
        yield np.empty(num_tokens, np.float32), {}
        return
    path = workdir.file(f"evaluation_{FLAGS.split}_tokens.npy")
    if FLAGS.token_nll_path is not None:
        path = os.path.abspath(os.path.expanduser(FLAGS.token_nll_path))
    with create_token_file(path, num_tokens) as nll:
        yield nll, {"token_nll": path}


def _score(model, segments, memory_length, nll):
    """Scores with progress; and tokens/s, compilation left out."""
    evaluator = Evaluator(
        model,
        tf.distribute.get_strategy(),
        segments.batch_size,
        segments.segment_length,
        memory_length,
    )
    times = {0: time.monotonic()}
    with tqdm(total=len(segments), unit="segment", disable=None) as bar:

        def on_progress(done, _):
            times[done] = time.monotonic()
            bar.update(done - bar.n)

        scores = evaluator.evaluate(segments, None, on_progress, nll)
    return {**scores, "tokens_per_second": _speed(times, scores["num_tokens"])}


def _speed(times, num_tokens):
    """Tokens/s, of the time when each number of segments was done."""
    done = list(times)
    # The first segment waits for the compiler.
    first = done[min(1, len(done) - 2)]
    share = (done[-1] - first) / done[-1]
    return share * num_tokens / (times[done[-1]] - times[first])


def _write(workdir, result, unit):
    # Others may have scored the split, too, in the meantime.
    results = with_result(_read_results(workdir), result)
    write_json(results, workdir.file(f"evaluation_{FLAGS.split}.json"))
    if FLAGS.position_curve:
        path = workdir.file(f"evaluation_{FLAGS.split}_positions.png")
        plot_position_curve(result["position_curve"], path, unit)


def _files(workdir, result):
    """Paths of what was written."""
    if "token_nll" in result:
        yield result["token_nll"]
    if "position_curve" in result:
        yield workdir.file(f"evaluation_{FLAGS.split}_positions.png")
    yield workdir.file(f"evaluation_{FLAGS.split}.json")


if __name__ == "__main__":
    running.run(main)

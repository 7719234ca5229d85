r"""Measures bits per character and perplexity of a run.

    python train/evaluate.py --workdir=runs/quickstart --split=test
    python train/evaluate.py --workdir=runs/enwik8 --memory_length=3800 \
        --segment_length=128 --same_length --clamp_length=1000

Every token of the split but the first is scored once, whatever the batch size.
Each row reads a part of the split and begins with an empty memory, which costs
its first tokens some bits. --warmup=memory first reads as many segments before
the row's part as memory holds; --warmup=exact as many as what is in memory can
depend on, L times that: then the result is that of --batch_size=1.
"""

import tensorflow as tf
from absl import flags
from tqdm import tqdm

from txl_keras.data import Segments
from txl_keras.data.preparation import prepare
from txl_keras.data.preparation import token_folder
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.evaluator import warmup_segments
from txl_keras.evaluation.report import add_bits_per_byte
from txl_keras.evaluation.report import describe
from txl_keras.scripts import data_flags
from txl_keras.scripts import running
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
flags.DEFINE_enum("split", "test", ["train", "valid", "test"], "Which text.")
flags.DEFINE_integer(
    "memory_length", None, "Default: as in training.", lower_bound=0
)
flags.DEFINE_integer(
    "segment_length", None, "Default: as in training.", lower_bound=1
)
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


def main(_):
    workdir = Workdir(FLAGS.workdir)
    config = workdir.read_config()
    settings = config["flags"]
    overrides = {
        name: FLAGS[name].value
        for name in ("same_length", "clamp_length")
        if FLAGS[name].value is not None
    }
    tokenizer = workdir.load_tokenizer()
    model, step = workdir.load_model(FLAGS.checkpoint, **overrides)
    segment_length = FLAGS.segment_length or settings["segment_length"]

    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = model.backbone.memory_length

    corpus_options = data_flags.corpus_options(config["corpus"])
    if corpus_options["corpus"] is None:
        raise ValueError(
            "`corpus` must be given: the model was not trained here. "
            "Received: --corpus=None"
        )
    corpus = data_flags.load_corpus(corpus_options)
    folder = token_folder(corpus_options["data_dir"])
    split = prepare(corpus, tokenizer, folder, [FLAGS.split])[FLAGS.split]
    expected = config["data"].get(FLAGS.split)
    if expected not in (None, split.fingerprint()):
        raise ValueError(
            f"The {FLAGS.split} split of {corpus.name} is not what it "
            "was when the run began: the text was changed, or Python was "
            f"updated. Expected {expected}. Received: {split.fingerprint()}"
        )
    warmup = {
        "none": 0,
        "memory": -(-memory_length // segment_length),
        "exact": warmup_segments(model.backbone, segment_length, memory_length),
    }[FLAGS.warmup]
    tokens, documents = split.head(FLAGS.max_eval_tokens)
    segments = Segments(
        tokens,
        FLAGS.batch_size,
        segment_length,
        drop_remainder=False,
        documents=documents,
        reset_documents=settings.get("reset_documents", False),
        warmup_segments=warmup,
    )
    evaluator = Evaluator(
        model,
        tf.distribute.get_strategy(),
        FLAGS.batch_size,
        segment_length,
        memory_length,
    )
    with tqdm(total=len(segments), unit="segment", disable=None) as bar:
        scores = evaluator.evaluate(
            segments, on_progress=lambda done, _: bar.update(done - bar.n)
        )
    results = {
        "step": step,
        "split": FLAGS.split,
        "batch_size": FLAGS.batch_size,
        "segment_length": segment_length,
        "warmup": FLAGS.warmup,
        "warmup_segments": warmup,
        "memory_length": memory_length,
        "same_length": model.backbone.same_length,
        "clamp_length": model.backbone.clamp_length,
        **add_bits_per_byte(scores, tokenizer, tokens),
    }
    path = workdir.file(f"evaluation_{FLAGS.split}.json")
    write_json(results, path)
    print(f"{FLAGS.split}: {describe(results, tokenizer)}")
    print(f"Written to {path}")


if __name__ == "__main__":
    running.run(main)

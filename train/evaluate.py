r"""Measures bits per character and perplexity of a run.

    python train/evaluate.py --workdir=runs/quickstart --split=test
    python train/evaluate.py --workdir=runs/enwik8 --memory_length=3800 \
        --segment_length=128 --same_length --clamp_length=1000

Every token of the split but the first is scored once. Rows begin with an
empty memory: --batch_size=1 reads the split as one stream.
"""

import tensorflow as tf
from absl import flags
from tqdm import tqdm

from txl_keras import script
from txl_keras.data import Segments
from txl_keras.data import load_corpus
from txl_keras.evaluation.compression import compressed_bits_per_character
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.training.workdir import Workdir
from txl_keras.training.workdir import fingerprint
from txl_keras.training.workdir import write_json

FLAGS = flags.FLAGS

flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_string("corpus", None, "Default: where it was in training.")
flags.DEFINE_string("data_dir", None, "Default: where it was in training.")
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
flags.DEFINE_integer("batch_size", 16, "Streams.", lower_bound=1)


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
    model, step = workdir.load_model(**overrides)
    segment_length = FLAGS.segment_length or settings["segment_length"]

    memory_length = FLAGS.memory_length
    if memory_length is None:
        memory_length = model.backbone.memory_length

    corpus_name = FLAGS.corpus or config["corpus"]["name"]
    if corpus_name is None:
        raise ValueError(
            "`corpus` must be given: the model was not trained here. "
            "Received: --corpus=None"
        )
    corpus = load_corpus(
        corpus_name,
        FLAGS.data_dir or config["corpus"]["data_dir"],
    )
    tokens = tokenizer.encode(corpus.splits[FLAGS.split])
    expected = config["data"].get(FLAGS.split)
    if expected not in (None, fingerprint(tokens)):
        raise ValueError(
            f"The {FLAGS.split} split of {corpus.name} is not what it "
            "was when the run began: the text was changed, or Python was "
            f"updated. Expected {expected}. Received: {fingerprint(tokens)}"
        )
    segments = Segments(tokens, FLAGS.batch_size, segment_length, False)
    evaluator = Evaluator(
        model, tf.distribute.get_strategy(), FLAGS.batch_size, memory_length
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
        "memory_length": memory_length,
        "same_length": model.backbone.same_length,
        "clamp_length": model.backbone.clamp_length,
        **scores,
        "compressors": compressed_bits_per_character(
            tokenizer.decode_bytes(tokens), len(tokens)
        ),
    }
    path = workdir.file(f"evaluation_{FLAGS.split}.json")
    for name, value in results.items():
        print(f"{name}: {value}")
    write_json(results, path)
    print(f"Written to {path}")


if __name__ == "__main__":
    script.run(main)

r"""Trains a Transformer-XL language model on text.

    python train/main.py --flagfile=train/configs/quickstart.flags
    python train/main.py --workdir=runs/mine --corpus=path/to/text_or_folder
    python train/main.py --flagfile=train/configs/enwik8_base.flags \
        --workdir=runs/enwik8 --data_dir=data --tpu=NAME

The same command again goes on where the run was stopped.
"""

import os
import time

import keras
from absl import flags

from txl_keras import script
from txl_keras.checkpoints.vocabularies import load_vocabulary
from txl_keras.data import Segments
from txl_keras.data import build_tokenizer
from txl_keras.data import load_corpus
from txl_keras.data import save_tokenizer
from txl_keras.data.corpora import CORPORA
from txl_keras.data.segments import replica_batch_size
from txl_keras.evaluation.compression import compressed_bits_per_character
from txl_keras.evaluation.evaluator import Evaluator
from txl_keras.evaluation.plots import plot_learning_curve
from txl_keras.layers.decoder_block import ATTENTION_TYPES
from txl_keras.metrics import bits_per_character
from txl_keras.metrics import perplexity
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import presets
from txl_keras.serving import Generator
from txl_keras.serving import Sampler
from txl_keras.serving import export
from txl_keras.training import optimizers
from txl_keras.training.checkpointing import Checkpoints
from txl_keras.training.progress import Progress
from txl_keras.training.strategy import create_strategy
from txl_keras.training.strategy import describe
from txl_keras.training.trainer import Trainer
from txl_keras.training.workdir import Workdir
from txl_keras.training.workdir import fingerprint
from txl_keras.training.workdir import hash_json
from txl_keras.training.workdir import read_json
from txl_keras.training.workdir import write_json

FLAGS = flags.FLAGS

# Where the run lives and on what.
flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_string(
    "tpu", None, "Name of a TPU; `local` or empty is that of this machine."
)
flags.DEFINE_integer(
    "num_cpu_devices", None, "Replicas to split the CPU into.", lower_bound=1
)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"],
    "Of activations; weights, softmax and loss are float32 always.",
)  # fmt: skip

# Data.
flags.DEFINE_string(
    "corpus", None, "python_stdlib, enwik8, text8, or a text file or folder.",
    required=True,
)  # fmt: skip
flags.DEFINE_string("data_dir", None, "Folder that holds enwik8 or text8.")
flags.DEFINE_enum(
    "tokenizer", "bytes", ["bytes", "characters", "words"], "What a token is."
)
flags.DEFINE_bool(
    "drop_newlines", False,
    "Leave newlines out, as the original's enwik8 protocol does. Its bpc is "
    "then one of the text without them.",
)  # fmt: skip

# Of --tokenizer=words.
flags.DEFINE_string(
    "vocabulary", None, "File of the words. Default: those of train, counted."
)
flags.DEFINE_integer("min_count", None, "Rarer words are unknown.")
flags.DEFINE_bool("lower_case", None, "Read text in lower case.")
flags.DEFINE_string("unknown", None, "Word for words unknown. Default: <unk>.")
flags.DEFINE_string("line_start", None, "Word before a line. Default: none.")
flags.DEFINE_string("line_end", None, "Word after a line. Default: <eos>.")
_WORD_FLAGS = ("min_count", "lower_case", "unknown", "line_start", "line_end")

# Model: a preset, and what differs from it.
flags.DEFINE_enum("preset", "quickstart", presets.names(), "Model sizes.")
_MODEL_FLAGS = []


def _define_model_flag(define, name, description, **kwargs):
    define(name, None, help=f"{description} Default: the preset's.", **kwargs)
    _MODEL_FLAGS.append(name)


_define_model_flag(flags.DEFINE_integer, "num_layers", "Blocks.")
_define_model_flag(flags.DEFINE_integer, "num_heads", "Attention heads.")
_define_model_flag(flags.DEFINE_integer, "head_dim", "Size of a head.")
_define_model_flag(flags.DEFINE_integer, "hidden_dim", "Hidden size.")
_define_model_flag(flags.DEFINE_integer, "intermediate_dim", "Inner size.")
_define_model_flag(
    flags.DEFINE_integer, "memory_length", "Memory; 0 for none.", lower_bound=0
)
_define_model_flag(
    flags.DEFINE_list, "cutoffs", "Where clusters of the vocabulary begin."
)
_define_model_flag(
    flags.DEFINE_integer, "embedding_dim", "Size of the first cluster."
)
_define_model_flag(
    flags.DEFINE_integer, "div_val", "How many times smaller the next is."
)
_define_model_flag(
    flags.DEFINE_bool, "project_same_dim", "Project tables of the hidden size."
)
_define_model_flag(
    flags.DEFINE_bool, "tie_embeddings", "Softmax shares the embedding tables."
)
_define_model_flag(
    flags.DEFINE_enum, "tie_projections", "Softmax shares their projections.",
    enum_values=["all", "all_but_first", "none"],
)  # fmt: skip
_define_model_flag(
    flags.DEFINE_enum, "attention_type", "Of the paper's ablation.",
    enum_values=ATTENTION_TYPES,
)  # fmt: skip
_define_model_flag(
    flags.DEFINE_integer, "max_positions", "Learned ones: shaw, al_rfou."
)
_define_model_flag(flags.DEFINE_bool, "tie_attention_biases", "One u and v.")
_define_model_flag(flags.DEFINE_bool, "same_length", "See M tokens, not more.")
_define_model_flag(
    flags.DEFINE_integer, "clamp_length", "Distances beyond it count as it."
)
_define_model_flag(flags.DEFINE_float, "dropout", "Dropout.")
_define_model_flag(flags.DEFINE_float, "attention_dropout", "On attention.")
_define_model_flag(flags.DEFINE_bool, "normalize_first", "Pre-norm.")
_define_model_flag(flags.DEFINE_bool, "normalize_output", "Norm at the end.")
_define_model_flag(flags.DEFINE_float, "layer_norm_epsilon", "Epsilon.")
_define_model_flag(
    flags.DEFINE_float, "initializer_stddev", "Of the initial weights."
)
_define_model_flag(
    flags.DEFINE_float, "projection_initializer_stddev", "Of the projections."
)

_TIES = {"all": True, "none": False}  # `all_but_first` is a value itself

# Training.
flags.DEFINE_integer("seed", 0, "Of initial weights and dropout.")
flags.DEFINE_integer("batch_size", 16, "Rows over all replicas.", lower_bound=1)
flags.DEFINE_integer("segment_length", 128, "Tokens a row.", lower_bound=1)
flags.DEFINE_integer("max_steps", 1000, "Steps of training.", lower_bound=1)
flags.DEFINE_enum(
    "optimizer", "adam", list(optimizers.OPTIMIZERS), "Lamb: large batches."
)
flags.DEFINE_float("learning_rate", 2.5e-4, "Peak.", lower_bound=0)
flags.DEFINE_float("min_learning_rate", 0.0, "At the end.", lower_bound=0)
flags.DEFINE_integer("warmup_steps", 0, "Of linear warm-up.", lower_bound=0)
flags.DEFINE_float("clip_norm", 0.25, "Largest global norm of the gradient.")

# Evaluation and habits: these may change when a run is resumed.
flags.DEFINE_integer(
    "eval_batch_size", 16, "Streams in evaluation.", lower_bound=1
)
flags.DEFINE_integer(
    "max_eval_tokens", None,
    "Score only the first tokens of valid and test. Default: all.",
    lower_bound=2,
)  # fmt: skip
flags.DEFINE_integer("eval_every", 500, "Steps.", lower_bound=1)
flags.DEFINE_integer("checkpoint_every", 500, "Steps.", lower_bound=1)
flags.DEFINE_integer(
    "max_to_keep", 2, "Checkpoints, for train/average.py.", lower_bound=2
)
flags.DEFINE_integer(
    "steps_per_execution", 20, "Steps between two looks.", lower_bound=1
)
flags.DEFINE_integer(
    "sample_length", 500, "Tokens of the sample.", lower_bound=0
)

_FIXED_FLAGS = (
    "tokenizer", "drop_newlines", "precision", "seed",
    "batch_size", "segment_length", "max_steps", "optimizer", "learning_rate",
    "min_learning_rate", "warmup_steps", "clip_norm", *_WORD_FLAGS,
)  # fmt: skip


def main(_):
    strategy = create_strategy(FLAGS.tpu, FLAGS.num_cpu_devices)
    keras.utils.set_random_seed(FLAGS.seed)
    workdir = Workdir(FLAGS.workdir)

    replica_batch_size(FLAGS.eval_batch_size, strategy, "eval_batch_size")

    # Data.
    corpus_place = _corpus_place()
    corpus = load_corpus(FLAGS.corpus, FLAGS.data_dir)
    tokenizer = build_tokenizer(
        FLAGS.tokenizer,
        corpus,
        FLAGS.drop_newlines,
        FLAGS.vocabulary and load_vocabulary(FLAGS.vocabulary),
        **_given(_WORD_FLAGS),
    )
    tokens = {
        split: tokenizer.encode(text) for split, text in corpus.splits.items()
    }
    train = Segments(
        tokens["train"], FLAGS.batch_size, FLAGS.segment_length, True
    )
    held_out = {
        split: tokens[split][: FLAGS.max_eval_tokens]
        for split in ("valid", "test")
    }
    valid, test = (
        Segments(ids, FLAGS.eval_batch_size, FLAGS.segment_length, False)
        for ids in held_out.values()
    )

    # Model.
    with strategy.scope():
        model = _build_model(tokenizer)
        optimizer = optimizers.OPTIMIZERS[FLAGS.optimizer](
            optimizers.cosine_schedule(
                FLAGS.learning_rate,
                FLAGS.max_steps,
                FLAGS.warmup_steps,
                FLAGS.min_learning_rate,
            )
        )
    _check_positions(model.backbone)
    trainer = Trainer(
        model,
        optimizer,
        strategy,
        FLAGS.batch_size,
        FLAGS.clip_norm,
        FLAGS.seed,
    )
    evaluator = Evaluator(model, strategy, FLAGS.eval_batch_size)

    # Start afresh, go on, or see that all is done.
    workdir.claim(
        {
            "flags": {name: FLAGS[name].value for name in _FIXED_FLAGS},
            "model": model.get_config(),
            "tokenizer": hash_json(tokenizer.get_config()),
            "corpus": corpus_place,
            "data": {split: fingerprint(ids) for split, ids in tokens.items()},
        }
    )
    save_tokenizer(tokenizer, workdir.tokenizer)
    checkpoints = Checkpoints(workdir.checkpoints, trainer, FLAGS.max_to_keep)
    step = checkpoints.restore()
    workdir.drop_metrics_after(step)
    results_path = workdir.file("results.json")
    print(
        f"{workdir.path}: {corpus.name}, "
        + ", ".join(f"{len(ids):,} {split}" for split, ids in tokens.items())
        + f" tokens of {tokenizer.vocabulary_size:,} kinds; "
        f"{model.count_params():,} weights; "
        f"{describe(strategy)}; "
        f"{FLAGS.batch_size * FLAGS.segment_length:,} tokens a step; "
        f"step {step} of {FLAGS.max_steps}",
        flush=True,
    )
    if step == FLAGS.max_steps and os.path.exists(results_path):
        print(
            "The run is finished. To score or sample it in other ways, use "
            "train/evaluate.py and train/generate.py."
        )
        _print_results(read_json(results_path))
        return

    # Train.
    progress = Progress(
        step, FLAGS.max_steps, FLAGS.batch_size * FLAGS.segment_length
    )
    iterator = iter(train.distribute(strategy, first_step=step))
    valid_scores = None
    while step < FLAGS.max_steps:
        num_steps = min(
            FLAGS.steps_per_execution,
            FLAGS.eval_every - step % FLAGS.eval_every,
            FLAGS.checkpoint_every - step % FLAGS.checkpoint_every,
            FLAGS.max_steps - step,
        )
        start = time.monotonic()
        try:
            losses = trainer.train(iterator, num_steps)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"{error} Training stopped; the last good checkpoint: "
                f"{checkpoints.latest or 'none yet'}. Lower --learning_rate "
                "or raise --warmup_steps, in a new --workdir."
            ) from error
        seconds = time.monotonic() - start
        step += num_steps
        loss = float(losses["loss"].mean())
        metrics = {
            "step": step,
            "loss": loss,
            "bits_per_character": bits_per_character(loss),
            "gradient_norm": float(losses["gradient_norm"].mean()),
            "learning_rate": float(optimizer.learning_rate),
        }
        progress.update(num_steps, seconds, loss, _score(loss))
        if step % FLAGS.eval_every == 0 or step == FLAGS.max_steps:
            metrics["valid"] = valid_scores = evaluator.evaluate(valid)
            progress.write(f"step {step}: valid {_score(valid_scores['nll'])}")
        workdir.append_metrics(metrics)
        if step % FLAGS.checkpoint_every == 0 or step == FLAGS.max_steps:
            checkpoints.save()
    progress.close()

    # Finish.
    print("Scoring test, writing a sample, exporting.", flush=True)
    results = {
        "step": step,
        "valid": valid_scores or evaluator.evaluate(valid),
        "test": evaluator.evaluate(test),
    }
    for split, ids in held_out.items():
        results[split]["compressors"] = compressed_bits_per_character(
            tokenizer.decode_bytes(ids), len(ids)
        )
    plot_learning_curve(
        workdir.read_metrics(),
        workdir.file("learning_curve.png"),
        results["valid"]["compressors"],
        "bits per token"
        if FLAGS.tokenizer == "words"
        else "bits per character",
    )
    # A copy on one device: the model itself may live on many.
    served, _ = workdir.load_model()
    prompt = tokens["test"][: FLAGS.segment_length]
    write = Generator(
        served,
        Sampler(temperature=0.8, top_p=0.95),
        workdir.generation_memory_length(),
    )
    sample = [
        int(token[0])
        for token in write(prompt[None], FLAGS.sample_length, FLAGS.seed)
    ]
    with open(workdir.file("sample.txt"), "w", encoding="utf-8") as file:
        file.write(tokenizer.decode(sample))
    export(served, workdir.file(f"export/{step}"))
    write_json(results, results_path)
    _print_results(results)


def _corpus_place():
    """Where the text lies, for scripts that are called from elsewhere."""
    name, data_dir = FLAGS.corpus, FLAGS.data_dir
    if name not in CORPORA:
        name = os.path.abspath(os.path.expanduser(name))
        workdir = os.path.abspath(os.path.expanduser(FLAGS.workdir))
        if os.path.isdir(name) and os.path.commonpath([name, workdir]) == name:
            raise ValueError(
                "`workdir` must not be in the folder of the text, or the run "
                f"would be read as text. Received: workdir={workdir}, "
                f"corpus={name}"
            )
    if data_dir is not None:
        data_dir = os.path.abspath(os.path.expanduser(data_dir))
    return {"name": name, "data_dir": data_dir}


def _integers(name):
    try:
        return [int(text) for text in FLAGS[name].value]
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be integers with commas between them. "
            f"Received: {name}={','.join(FLAGS[name].value)}"
        ) from error


def _given(names):
    """Flags that were given, by name."""
    values = {name: FLAGS[name].value for name in names}
    return {name: v for name, v in values.items() if v is not None}


def _build_model(tokenizer):
    changes = _given(_MODEL_FLAGS)
    if "cutoffs" in changes:
        changes["cutoffs"] = _integers("cutoffs")
    if changes.get("tie_projections") in _TIES:
        changes["tie_projections"] = _TIES[changes["tie_projections"]]
    policy = "mixed_bfloat16" if FLAGS.precision == "bfloat16" else "float32"
    return TransformerXLCausalLM.from_preset(
        FLAGS.preset,
        dtype=policy,
        vocabulary_size=tokenizer.vocabulary_size,
        **changes,
    )


def _check_positions(backbone):
    limit = backbone.max_positions
    if backbone.attention_type == "al_rfou" and FLAGS.segment_length > limit:
        raise ValueError(
            "`segment_length` must be at most `max_positions` with "
            f"attention_type=al_rfou. Received: "
            f"segment_length={FLAGS.segment_length}, max_positions={limit}"
        )


def _score(nll):
    """What the field gives: perplexity of words, bits of characters."""
    if FLAGS.tokenizer == "words":
        return f"{perplexity(nll):.2f} ppl"
    return f"{bits_per_character(nll):.4f} bpc"


def _print_results(results):
    for split in ("valid", "test"):
        scores = results[split]
        unit = " bits a token" if FLAGS.tokenizer == "words" else ""
        others = ", ".join(
            f"{name} {value:.3f}"
            for name, value in scores["compressors"].items()
        )
        print(
            f"{split}: {_score(scores['nll'])} over "
            f"{scores['num_tokens']:,} tokens ({others}{unit})"
        )
    sample = Workdir(FLAGS.workdir).file("sample.txt")
    with open(sample, encoding="utf-8") as file:
        print(f"--- {sample}, from inside the test text\n{file.read()}\n---")
    print(
        f"In {FLAGS.workdir}: learning_curve.png, metrics.jsonl, "
        f"results.json, sample.txt, export/{results['step']} (SavedModel)"
    )


if __name__ == "__main__":
    script.run(main)

r"""Measures how much context the models of a group make use of.

    python train/recl.py --workdirs=runs/memory,runs/no_memory \
        --context_lengths=32,64,96,128,160,192 --output=runs/recl.json
    python train/recl.py --workdirs=runs/wt103_base,runs/wt103_shaw \
        --split=valid --num_positions=5000 --output=runs/recl_wt103.json

The relative effective context length (RECL) of section 4.3 and appendix C of
Dai et al., 2019: the context length from which another step lowers a model's
perplexity by less than 1 %, where only what no model of the group knew from
the shorter context counts; over the share --top_r of positions that are the
hardest for all. It is a number of this group, not of a model alone.

The same positions, evenly spread over the split, are predicted from exactly c
tokens for each of the context lengths. The time is that of reading
num_positions times the sum of the lengths, in tokens, for each model. Borders
of documents are not heeded.

The models must be of one tokenizer, and of one text unless --corpus gives
another. Written: --output, a JSON file, and a picture beside it, of the same
name with .png.
"""

import os

from absl import flags
from tqdm import tqdm

from txl_keras.checks import check_integer
from txl_keras.data.corpora.corpus import SPLITS
from txl_keras.evaluation.context_losses import context_losses
from txl_keras.evaluation.context_losses import spread_positions
from txl_keras.evaluation.plots import plot_recl
from txl_keras.evaluation.recl import THRESHOLD
from txl_keras.evaluation.recl import check_context_lengths
from txl_keras.evaluation.recl import check_top_r
from txl_keras.evaluation.recl import effective_context_lengths
from txl_keras.evaluation.recl import recl_label
from txl_keras.scripts import data_flags
from txl_keras.scripts import running
from txl_keras.scripts import several_runs
from txl_keras.training.workdir import write_json

FLAGS = flags.FLAGS

flags.DEFINE_list(
    "workdirs", None, "Folders of two runs or more.", required=True
)
flags.DEFINE_string("output", None, "JSON file to write.", required=True)
flags.DEFINE_enum(
    "checkpoint", "best", ["best", "latest"], "Best by valid, or newest."
)
# Default: that of the runs.
data_flags.define_corpus_flags(required=False)
flags.adopt_module_key_flags(data_flags)
flags.DEFINE_enum("split", "test", SPLITS, "Which text.")
flags.DEFINE_list(
    "context_lengths", [str(length) for length in range(100, 1001, 100)],
    "Two or more, each the same step longer than the one before.",
)  # fmt: skip
flags.DEFINE_list(
    "top_r", ["0.1", "0.5", "1"], "Shares of positions, the hardest ones."
)
flags.DEFINE_integer(
    "num_positions", 1000, "How many tokens to predict.", lower_bound=1
)
flags.DEFINE_list(
    "segment_lengths", None, "One for each run. Default: as in training."
)
flags.DEFINE_list(
    "memory_lengths", None, "One for each run. Default: as in training."
)
flags.DEFINE_integer("batch_size", 16, "Rows.", lower_bound=1)


def main(_):
    output = several_runs.output_path((".json",), "a .png comes beside it")
    context_lengths = several_runs.numbers("context_lengths", int)
    check_context_lengths(context_lengths)
    shares = several_runs.numbers("top_r", float)
    for share in shares:
        check_top_r(share)
    workdirs, configs, tokenizer = _group()
    name, text, split = several_runs.prepare_split(
        FLAGS.workdirs, configs, tokenizer
    )
    positions = spread_positions(
        len(split.tokens), FLAGS.num_positions, max(context_lengths)
    )
    # All of them first: what is amiss with the last comes before any work.
    loaded = [workdir.load_model(FLAGS.checkpoint) for workdir in workdirs]
    models = [
        {"workdir": workdir, "step": step, **settings}
        for workdir, (_, step), settings in zip(
            FLAGS.workdirs, loaded, _settings(loaded, configs), strict=True
        )
    ]
    losses = [
        _losses(model, split.tokens, positions, context_lengths, of_model)
        for (model, _), of_model in zip(loaded, models, strict=True)
    ]
    results = {workdir: {} for workdir in FLAGS.workdirs}
    for share in shares:
        of_group = effective_context_lengths(losses, context_lengths, share)
        for by_share, result in zip(results.values(), of_group, strict=True):
            by_share[share] = result
    for model, nll in zip(models, losses, strict=True):
        model["nll"] = nll.mean(axis=1, dtype=float).tolist()
        by_share = results[model["workdir"]]
        model["recl"] = [{"top_r": r, **by_share[r]} for r in shares]
    written = {
        "picture": "recl",
        **text,
        "num_positions": len(positions),
        "context_lengths": context_lengths,
        "threshold": THRESHOLD,
        "models": models,
    }
    write_json(written, output)
    plot_recl(results, _picture(output), tokenizer.unit)
    print(f"{name}, {FLAGS.split}: RECL in {tokenizer.unit}s")
    _print_table(results, shares)
    print(f"Written to {output}\nWritten to {_picture(output)}")


def _picture(output):
    return output.removesuffix(".json") + ".png"


def _group():
    """What `open_group` returns, of two runs or more."""
    paths = FLAGS.workdirs
    if len({os.path.realpath(path) for path in paths}) < max(2, len(paths)):
        raise ValueError(
            "`workdirs` must be two runs or more, none of them twice: the "
            "length is relative to the best of the group. Received: "
            f"--workdirs={','.join(paths)}"
        )
    return several_runs.open_group(paths)


def _settings(loaded, configs):
    """How each model reads: what JSON shall say."""
    segment_lengths = _lengths(
        "segment_lengths",
        [config["flags"].get("segment_length") for config in configs],
    )
    memory_lengths = _lengths(
        "memory_lengths", [model.backbone.memory_length for model, _ in loaded]
    )
    for (model, _), segment_length, memory_length in zip(
        loaded, segment_lengths, memory_lengths, strict=True
    ):
        check_integer("segment_lengths", segment_length, 1)
        check_integer("memory_lengths", memory_length, 0)
        model.backbone.check_positions(segment_length)
        model.backbone.check_remembers(memory_length)
    return [
        {"segment_length": segment_length, "memory_length": memory_length}
        for segment_length, memory_length in zip(
            segment_lengths, memory_lengths, strict=True
        )
    ]


def _lengths(name, defaults):
    """One for each run."""
    if FLAGS[name].value is None:
        return defaults
    lengths = several_runs.numbers(name, int)
    if len(lengths) != len(defaults):
        raise ValueError(
            f"`{name}` must be as many as `workdirs`, {len(defaults)}. "
            f"Received: --{name}={','.join(FLAGS[name].value)}"
        )
    return lengths


def _losses(model, tokens, positions, context_lengths, of_model):
    total = len(context_lengths) * len(positions)
    with tqdm(
        total=total, desc=of_model["workdir"], unit="reading", disable=None
    ) as bar:
        return context_losses(
            model,
            tokens,
            positions,
            context_lengths,
            of_model["segment_length"],
            of_model["memory_length"],
            FLAGS.batch_size,
            lambda done, _: bar.update(done - bar.n),
        )


def _print_table(results, shares):
    width = max(len("model"), *map(len, results))
    heads = [f"r = {share:g}" for share in shares]
    rows = [("model", heads)] + [
        (name, [recl_label(by_share[share]) for share in shares])
        for name, by_share in results.items()
    ]
    for name, cells in rows:
        print(f"{name:{width}}", *(f"{cell:>10}" for cell in cells))


if __name__ == "__main__":
    running.run(main)

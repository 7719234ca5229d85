r"""Measures how much context each model of a group uses.

    txl recl --workdirs=runs/memory,runs/no_memory \
        --context_lengths=32,64,96,128,160,192 --output=runs/recl.json
    txl recl --workdirs=runs/wt103_base,runs/wt103_shaw \
        --split=valid --num_positions=5000 --output=runs/recl_wt103.json

This is the relative effective context length (RECL) of section 4.3 and
appendix C of Dai et al., 2019: the context length at which one more step of
context lowers a model's perplexity by less than 1 %. Only gains over the
baseline count, the best loss that any model of the group reaches with the
shorter context. The mean is over the share --top_r of positions that are
hardest for all models. So RECL compares the models of a group; it is not a
property of a single model.

The same positions, evenly spread over the split, are predicted from exactly c
tokens for each of the context lengths. For each model this reads as many
tokens as num_positions times the sum of the context lengths. Document
boundaries are ignored. The models must share one tokenizer, and one text unless
--corpus gives another.

Writes the JSON file --output and, beside it, a picture of the same name that
ends with .png. Stopped at any time, the same command goes on where it was.
"""

import functools

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np

from txl_keras.checks import check_number
from txl_keras.evaluation.backup import Backup
from txl_keras.evaluation.backup import weights_hash
from txl_keras.evaluation.plots import plot_recl
from txl_keras.evaluation.recl import THRESHOLD
from txl_keras.evaluation.recl import check_context_lengths
from txl_keras.evaluation.recl import effective_context_lengths
from txl_keras.evaluation.recl import recl_label
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts import several_runs
from txl_keras.scripts.options import FLAGS
from txl_keras.workdir import write_json


class Recl(options.Options):
    """Holds the options of this command.

    output: JSON file to write.
    top_r: Shares of the positions to average over, the hardest first.
    """

    output: options.path = options.REQUIRED
    top_r: list = ["0.1", "0.5", "1"]


several_runs.define_group_flags(
    range(100, 1001, 100), workdirs=options.REQUIRED
)
Recl.define()


def main(_):
    # Check everything that is possible before text and models are loaded.
    output = several_runs.output_path((".json",))
    context_lengths = options.numbers("context_lengths", int)
    check_context_lengths(context_lengths)
    shares = options.numbers("top_r", float)
    for share in shares:
        check_number("top_r", share, 0, 1, exclusive=True)
    options.refuse(
        len(FLAGS.workdirs) < 2,
        "`workdirs` must be two or more runs: the length is relative to the "
        "best of the group.",
    )

    runs, text, split = several_runs.open_group()
    facts = {**text, "context_lengths": context_lengths}
    models = [of_model for _, of_model in runs]
    weights = [weights_hash(model) for model, _ in runs]
    backup = Backup(
        f"{output.removesuffix('.json')}_state",
        {**facts, "models": models, "weights": weights},
    )
    shape = len(runs), len(context_lengths), FLAGS.num_positions
    losses = np.full(shape, np.nan, np.float32)
    if state := backup.restore():
        losses[:] = state["losses"]
    save = functools.partial(backup.save, {"losses": losses})
    for run, own in zip(runs, losses, strict=True):
        several_runs.measure_losses(
            *run, split.tokens, context_lengths, own, save
        )
    for model, own in zip(models, losses, strict=True):
        model["nll"] = own.mean(axis=1, dtype=float).tolist()
        model["recl"] = []
    for share in shares:
        found = effective_context_lengths(losses, context_lengths, share)
        for model, result in zip(models, found, strict=True):
            model["recl"].append({"top_r": share, **result})
    written = {
        "picture": "recl", **facts, "threshold": THRESHOLD, "models": models
    }  # fmt: skip
    write_json(written, output)
    backup.remove()
    picture = output.removesuffix(".json") + ".png"
    plot_recl(written, picture)
    print(f"{text['corpus']}, {FLAGS.split}: RECL in {text['unit']}s")
    width = max(len("model"), *(len(model["label"]) for model in models))
    for name, cells in [
        ("model", [f"r = {share:g}" for share in shares]),
        *((model["label"], map(recl_label, model["recl"])) for model in models),
    ]:
        print(f"{name:{width}}", *(f"{cell:>10}" for cell in cells))
    print(f"Written to {output}\nWritten to {picture}")


if __name__ == "__main__":
    running.run(main)

r"""Prepares text for training and prints statistics of its tokens.

    txl prepare --corpus=enwik8 --data_dir=FOLDER \
        --tokenizer=characters --drop_newlines
    txl prepare --corpus=articles.txt --tokenizer=words \
        --min_count=5

This step is optional: training prepares its text itself. It reuses text that
was prepared in the same folder.
"""

import os

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np

from txl_keras.data.layouts import document_lengths
from txl_keras.data.preparation import token_folder
from txl_keras.data.vocabulary import choose_cutoffs
from txl_keras.data.vocabulary import token_counts
from txl_keras.extending import registered
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts.options import FLAGS
from txl_keras.workdir import write_json

_LENGTHS = "{min:,} to {max:,}, median {median:,.0f}, mean {mean:,.0f}"


EXTENSIONS = registered("section_map")
for extension in EXTENSIONS.values():
    extension.define()
data_flags.Corpus.define(corpus=options.REQUIRED)
data_flags.Tokenizer.define()


def main(_):
    folder = token_folder(FLAGS.data_dir)
    made = [extension.make(folder) for extension in EXTENSIONS.values()]
    section_map = next(filter(None, made), None)
    corpus, tokenizer, splits = data_flags.prepare_text(section_map=section_map)
    size = tokenizer.vocabulary_size
    counts = token_counts(splits["train"].tokens, size)
    cutoffs = choose_cutoffs(counts)
    found = {name: _describe(split) for name, split in splits.items()}
    print(f"{corpus.name}: a vocabulary of {size:,}")
    print(
        f"{'':6} {'bytes':>15} {'tokens':>15} {'bytes/token':>11} "
        f"{'unknown':>8} {'documents':>11}   tokens per document"
    )
    for name, split in found.items():
        print(
            f"{name:6} {split['num_bytes']:15,} {split['num_tokens']:15,} "
            f"{split['bytes_per_token']:11.3f} {split['unknown_rate']:8.3%} "
            f"{split['num_documents']:11,}   "
            + _LENGTHS.format(**split["document_length"])
        )
    if cutoffs:
        print(
            "Cutoffs with the fewest logits per token: --cutoffs="
            + ",".join(map(str, cutoffs))
        )
    most_frequent = (-counts).argsort(kind="stable")[:20]
    print(
        "Most frequent in train:",
        *(
            f"{tokenizer.decode_bytes(i).decode(errors='replace')!r}:"
            f"{counts[i]:,}"
            for i in most_frequent
        ),
    )
    folder = os.path.dirname(splits["train"].folder)
    statistics = {
        "corpus": corpus.name,
        "vocabulary_size": size,
        "cutoffs": cutoffs,
        "splits": found,
        "folder": folder,
    }
    write_json(statistics, os.path.join(folder, "statistics.json"))
    print(f"Ids and statistics.json are in {folder}")


def _describe(split):
    """Returns a dict of the sizes, rates and document lengths of a split."""
    metadata = split.metadata
    names = ("num_bytes", "num_tokens", "num_documents")
    lengths = document_lengths(split.documents, metadata["num_tokens"])
    return {
        **{name: metadata[name] for name in names},
        "bytes_per_token": metadata["num_bytes"] / metadata["num_tokens"],
        "unknown_rate": metadata["num_unknown"] / metadata["num_tokens"],
        "document_length": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "max": int(lengths.max()),
        },
    }


if __name__ == "__main__":
    running.run(main)

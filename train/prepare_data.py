r"""Prepares text for training and prints statistics of its tokens.

    txl prepare --corpus=enwik8 --data_dir=FOLDER \
        --tokenizer=characters --drop_newlines
    txl prepare --corpus=articles.txt --tokenizer=words \
        --min_count=5

This step is optional: training prepares its text itself, and reuses what this
script has prepared in the same folder.
"""

import txl_keras.scripts.quiet  # noqa: F401

import numpy as np

from txl_keras.data.layouts import document_lengths
from txl_keras.data.preparation import token_folder
from txl_keras.data.statistics import mean_bytes
from txl_keras.data.statistics import token_counts
from txl_keras.data.vocabulary import choose_cutoffs
from txl_keras.extending import registered
from txl_keras.scripts import data_flags
from txl_keras.scripts import options
from txl_keras.scripts import running
from txl_keras.scripts.options import FLAGS

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
    print(f"{corpus.name}: a vocabulary of {size:,}")
    print(
        f"{'':6} {'bytes':>15} {'tokens':>15} {'bytes/token':>11} "
        f"{'unknown':>8} {'documents':>11}   tokens per document"
    )
    for name, split in splits.items():
        number = split.metadata["num_tokens"]
        lengths = document_lengths(split.documents, number)
        print(
            f"{name:6} {split.metadata['num_bytes']:15,} {number:15,} "
            f"{mean_bytes(split):11.3f} "
            f"{split.metadata['num_unknown'] / number:8.3%} "
            f"{len(lengths):11,}   {lengths.min():,} to {lengths.max():,}, "
            f"median {np.median(lengths):,.0f}, mean {lengths.mean():,.0f}"
        )
    counts = token_counts(splits["train"].tokens, size)
    if cutoffs := choose_cutoffs(counts):
        print(
            "Cutoffs with the fewest logits per token: --cutoffs="
            + ",".join(map(str, cutoffs))
        )
    print(
        "Most frequent in train:",
        *(
            f"{tokenizer.decode_bytes(i).decode(errors='replace')!r}:"
            f"{counts[i]:,}"
            for i in (-counts).argsort(kind="stable")[:20]
        ),
    )
    print(f"The ids of train are in {splits['train'].folder}")


if __name__ == "__main__":
    running.run(main)

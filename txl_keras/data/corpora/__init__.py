"""Corpora: text in three splits, loaded by name or by path.

- `python_stdlib`: the source code of Python's standard library, no download.
- `enwik8`, `text8`, `wikitext103`, `wikitext2`, `ptb`: downloaded from their
  publishers, or read from files that are already present.
- `tfds:NAME`: any text in TensorFlow Datasets, such as `tfds:lm1b`.
- Any other name is the path of the user's own text.
"""

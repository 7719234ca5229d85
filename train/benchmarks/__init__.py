"""The experiments of train/benchmark.py, one per file.

An experiment is a module with `run(model, settings, peer)`:

    training.py         one training step
    evaluation.py       scoring of one segment
    attention.py        the attention of one block alone
    input_pipeline.py   the input pipeline without a model
    feeding.py          sending the input to the hosts of a TPU slice
    growth.py           time and memory of a step as T, M, L and B grow
    generation.py       generation, one token after the other
    long_generation.py  generation of a text much longer than the memory
    evaluation_speed.py evaluation with memory against a sliding window, table 9

`model` is the `TransformerXLCausalLM` that model.py builds; `settings` has the
flags of the script as attributes; `peer` is the function that `open_peer`
yields, or `None`. `run` prints its results and returns them as a dictionary
for JSON.

The contenders of an experiment take turns (turns.py) on synthetic text
(made_up_text.py), and report.py prints the table. Besides this library there
are two kinds of contenders: the same model in bare TensorFlow
(bare_tensorflow.py) and programs in another environment (peer.py).
"""

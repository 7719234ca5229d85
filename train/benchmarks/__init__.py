"""What train/benchmark.py times, an experiment a file.

An experiment is a module with `run(model, settings, peer)`:

    training.py         the step of a run
    evaluation.py       segments that are scored
    attention.py        attention of one block, nothing else
    input_pipeline.py   batches, without a model
    growth.py           time and memory of a step, by T, M, L and B
    generation.py       tokens written one after the other
    long_generation.py  the same, over a text much longer than memory
    evaluation_speed.py memory against a window that slides, table 9

`model` is a `TransformerXLCausalLM`, of model.py; `settings` an object that
has the flags of the script as attributes; `peer` what `peer.open_peer` opens,
or `None`. `run` prints what it found and returns it as a dictionary for JSON.

All compare in turns (turns.py), on made_up_text.py, and say what came out by
report.py. With what they compare: bare_tensorflow.py, and by peer.py programs
of other environments.
"""

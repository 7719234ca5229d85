"""What train/benchmark.py times, an experiment a file.

An experiment is a module with `run(model, settings, peer)`:

    generation.py       tokens written one after the other
    long_generation.py  the same, over a text much longer than memory
    evaluation.py       segments that are scored
    evaluation_speed.py the same against a window that slides, table 9

`model` is a `TransformerXLCausalLM`; `settings` an object that has the flags
of the script as attributes; `peer` what `peer.open_peer` opens, or `None`.
`run` prints what it found and returns it as a dictionary for JSON.

All of them compare in turns, see turns.py, on text of made_up_text.py.
"""

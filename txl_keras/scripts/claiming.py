"""How a run takes its workdir."""

from txl_keras.data.preparation import tokenizer_hash
from txl_keras.scripts import data_flags
from txl_keras.training.strategy import is_chief
from txl_keras.training.strategy import wait_for_all


def claim(workdir, settings, model, tokenizer, splits, strategy):
    """Makes the workdir that of this run, or sees that it is.

    Args:
        workdir: `Workdir`.
        settings: Dictionary of the flags that make the results of the run.
        model: The model.
        tokenizer: The tokenizer.
        splits: Dictionary of split to `PreparedSplit`.
        strategy: The `tf.distribute.Strategy`.

    Raises:
        ValueError: If a run of another configuration lives there, or not all
            workers see the folder.
        OSError: If another process trains there.
    """
    config = {
        "flags": settings,
        "model": model.get_config(),
        "tokenizer": tokenizer_hash(tokenizer),
        "corpus": data_flags.corpus_options(),
        "data": {name: s.fingerprint() for name, s in splits.items()},
    }
    if is_chief(strategy):
        workdir.claim(config, tokenizer)
    wait_for_all(strategy)
    if not workdir.is_claimed():
        raise ValueError(
            "`workdir` must be a folder that all workers see, such as a "
            f"bucket. This one does not see the chief's: {workdir.path}"
        )
    # Of the other workers: do they have the same flags and text?
    workdir.check_config(config)

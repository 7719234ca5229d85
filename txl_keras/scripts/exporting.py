"""Export of a run as a SavedModel."""

import tensorflow as tf

from txl_keras.serving import export
from txl_keras.serving import export_text


def export_run(
    workdir, model, step, path, raw_text=False, memory_length=None, **options
):
    """Writes a run's SavedModel with its tokenizer and config as assets.

    Calls `export_text` for `raw_text`, else `export`. The default memory
    length is the one that train/generate.py uses.
    """
    if memory_length is None:
        memory_length = 0
        if model.backbone.remembers:
            memory_length = workdir.generation_memory_length(model.backbone)
    assets = {"config.json": workdir.file("config.json")}
    if tf.io.gfile.exists(workdir.tokenizer):
        assets["tokenizer.json"] = workdir.tokenizer
    options = {
        "memory_length": memory_length,
        "settings": {"step": step},
        "assets": assets,
        **options,
    }
    if raw_text:
        export_text(model, workdir.load_tokenizer(), path, **options)
    else:
        export(model, path, **options)


def loading_note(tokenizer):
    """Returns a note on the package that a SavedModel with subwords needs."""
    if tokenizer.unit != "subword":
        return ""
    return (
        "\nIts tokenizer has subwords: `import tensorflow_text` before it is "
        "loaded, because TensorFlow alone lacks its operations."
    )

"""The SavedModel of a run."""

import tensorflow as tf

from txl_keras.serving import export
from txl_keras.serving import export_text


def export_run(
    workdir, model, step, path, raw_text=False, memory_length=None, **options
):
    """Writes the SavedModel of a run, its tokenizer and configuration beside.

    Args:
        workdir: `Workdir`.
        model: `TransformerXLCausalLM`, the run's, on one device.
        step: Integer, the step of its weights.
        path: String, the folder to write.
        raw_text: Boolean, the one that takes text, rather than ids.
        memory_length: Optional integer; by default as far back as the run
            itself looks when it writes.
        **options: Others of `export` or `export_text`.
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
    """Returns a line about what a SavedModel with this tokenizer needs."""
    if tokenizer.unit != "subword":
        return ""
    return (
        "\nIt has subwords: `import tensorflow_text` before it is loaded, or "
        "TensorFlow finds an operation that is not registered."
    )

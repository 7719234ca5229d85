"""Export of a run."""

import tensorflow as tf

from txl_keras import serving


def export_run(
    workdir,
    model,
    step,
    path=None,
    kind="export",
    memory_length=None,
    **options,
):
    """Writes the model of a run, by default to WORKDIR/KIND/STEP."""
    # `kind` is "export", "export_text" or "export_openvino". The default memory
    # length is the one that train/generate.py uses.
    if path is None:
        path = workdir.file(f"{kind}/{step}")
    if memory_length is None:
        memory_length = 0
        if model.backbone.remembers:
            memory_length = workdir.generation_memory_length(model.backbone)
    assets = {"config.json": workdir.file("config.json")}
    if tf.io.gfile.exists(workdir.tokenizer):
        assets["tokenizer.json"] = workdir.tokenizer
    if kind == "export_text":
        options["tokenizer"], kind = workdir.load_tokenizer(), "export"
    getattr(serving, kind)(
        model,
        path,
        memory_length=memory_length,
        settings={"step": step},
        assets=assets,
        **options,
    )
    return path


def loading_note(tokenizer):
    """Returns a note on the package that a SavedModel with subwords needs."""
    if tokenizer.unit != "subword":
        return ""
    return (
        "\nIts tokenizer has subwords: `import tensorflow_text` before it is "
        "loaded, because TensorFlow alone lacks its operations."
    )

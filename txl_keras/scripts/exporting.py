"""Export of a run."""

import tensorflow as tf

from txl_keras.serving import export


def export_run(
    workdir,
    model,
    step,
    path=None,
    kind="export",
    memory_length=None,
    write=export,
    **options,
):
    """Writes the model of a run, by default to WORKDIR/KIND/STEP."""
    # The default memory length is the one that train/generate.py uses.
    if path is None:
        path = workdir.file(f"{kind}/{step}")
    if memory_length is None:
        backbone = model.backbone
        memory_length = workdir.generation_memory_length(backbone)
        memory_length *= backbone.remembers  # 0 for absolute positions
    assets = {"config.json": workdir.file("config.json")}
    if tf.io.gfile.exists(workdir.tokenizer):
        assets["tokenizer.json"] = workdir.tokenizer
    write(
        model,
        path,
        memory_length=memory_length,
        settings={"step": step},
        assets=assets,
        **options,
    )
    return path

"""Model folders in the Hugging Face Hub."""

import os
import re

from txl_keras.checks import check_path
from txl_keras.json_files import read_json
from txl_keras.lazy import import_extra
from txl_keras.types import PathLike

# Symbols of a Hugging Face `transfo-xl`, in its order of preference.
VOCABULARIES = ("vocab.pkl", "vocab.bin", "vocab.txt")
# Files to download; PyTorch's file only if there is no other.
_DOWNLOADED = (
    *("config.json", "tokenizer.json", "model.safetensors"),
    *VOCABULARIES,
)
_UPLOADED = ("config.json", "model.safetensors", "tokenizer.json", "README.md")


def upload_preset(uri: str, preset: PathLike) -> None:
    """Uploads the folder of a preset to the Hugging Face Hub.

    Requires huggingface_hub, and its `login()` or the variable `HF_TOKEN`. The
    repository is created if it does not exist. `from_preset(uri)` reads it.

    Args:
        uri: String, `"hf://owner/name"`.
        preset: String or path of a folder that `save_to_preset` wrote. Its
            files are uploaded and a `README.md`, if there is one; nothing else.

    Raises:
        ValueError: If the uri has another form, or the folder has no preset.

    Example, which needs the network:

    ```
    model.save_to_preset("mine")
    upload_preset("hf://me/mine", "mine")
    model = TransformerXLCausalLM.from_preset("hf://me/mine")
    ```
    """
    repository, folder = _repository("uri", uri), check_path("preset", preset)
    if not is_preset(folder):
        raise ValueError(
            "`preset` must be a folder that `save_to_preset` wrote. Received: "
            f"preset={preset}"
        )
    hub = import_extra("huggingface_hub")
    hub.create_repo(repository, exist_ok=True)
    hub.upload_folder(
        repo_id=repository,
        folder_path=folder,
        allow_patterns=[*_UPLOADED],
        delete_patterns=["tokenizer.json"],  # of an earlier upload
    )


def download(preset):
    """Downloads the files of a Hub repository; returns their folder."""
    repository = _repository("preset", preset)
    hub = import_extra("huggingface_hub")
    for patterns in (_DOWNLOADED, (*_DOWNLOADED, "pytorch_model.bin")):
        folder = hub.snapshot_download(repository, allow_patterns=[*patterns])
        if os.path.exists(os.path.join(folder, "model.safetensors")):
            break
    return folder


def is_preset(folder):
    """Returns whether a folder has the config.json of a preset."""
    try:
        content = read_json(os.path.join(folder, "config.json"))
    except (FileNotFoundError, ValueError):
        return False
    # A run has a class, too, but no hash of its weights.
    return {"class_name", "weights"} <= content.keys()


def _repository(name, uri):
    """Returns the `owner/name` in a URI."""
    pattern = r"hf://(\w[\w.-]*/\w[\w.-]*)"
    match = isinstance(uri, str) and re.fullmatch(pattern, uri)
    if not match:
        raise ValueError(
            f"`{name}` must be 'hf://owner/name' for a repository of the "
            f"Hugging Face Hub. Received: {name}={uri!r}"
        )
    return match[1]

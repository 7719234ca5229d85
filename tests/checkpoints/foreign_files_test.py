"""Tests of what a stranger's file may cost: bounded memory, and a sentence."""

import contextlib
import ctypes
import json
import pathlib
import pickle
import random
import re
import resource
import shutil
import struct
import types
import zipfile

import pytest
import safetensors.numpy
from factories import change_json
from stored_models import GOLDEN
from stored_models import copy_stored
from stored_models import stored_config
from stored_models import torch_legacy
from stored_models import zipped

from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import load_hugging_face_xlnet
from txl_keras.checkpoints import load_pytorch
from txl_keras.checkpoints import load_tf1
from txl_keras.checkpoints import load_vocabulary
from txl_keras.checkpoints import save_hugging_face
from txl_keras.checkpoints.pytorch import load_torch
from txl_keras.checkpoints.pytorch import torch_tensors
from txl_keras.models import TransformerXLCausalLM

PYTORCH = "original_pytorch_enwik8_like"
TF1 = "wt103_base_like"
MEBIBYTE = 1 << 20

# Sixty tuples, each of twice the one before: a hash or a `repr` never ends.
TUPLES = b"X\x01\0\0\0a" + b"2\x86" * 60
ORDERED = b"ccollections\nOrderedDict\n"


def pairs(count):
    """The list that an OrderedDict is made of."""
    keys = (b"X\x04\0\0\0%04d" % i for i in range(count))
    return b"](" + b"".join(b"](" + key + b"K\0e" for key in keys) + b"e"


PICKLES = {
    "memo index": (
        b"\x80\x02Nr" + struct.pack("<I", 1 << 28) + b".",
        "much more memory",
    ),
    "tuples as key": (b"\x80\x02}" + TUPLES + b"K\x01s.", "more time"),
    "deep lists": (
        b"\x80\x02" + b"](" * 2000 + b"e" * 2000 + b".",
        "recursion",
    ),
    "copies": (
        b"\x80\x02" + ORDERED + b"q\0" + pairs(9999) + b"\x85q\1("
        + b"h\0h\1R" * 9000 + b"l.",
        "much more memory",
    ),
    "declared sizes": (
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"a.",
        "much more memory",
    ),
}  # fmt: skip


def packed(pickled, **options):
    numbers = "model/data/0", bytes(4000)
    return zipped(("model/data.pkl", pickled), numbers, **options)


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integers(*values):
    return b"(" + b"".join(b"J" + struct.pack("<i", i) for i in values) + b"t"


def tensor(shape, strides, size=1000, metadata=b""):
    """A pickled tensor of 1000 floats, or of what it says."""
    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0")
        + text("cpu") + b"J" + struct.pack("<i", size) + b"tQ"
    )  # fmt: skip
    sizes = integers(*shape) + integers(*strides)
    arguments = b"(" + storage + b"K\0" + sizes + b"\x89}" + metadata + b"t"
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R"


def state(**tensors):
    items = b"".join(text(name) + data for name, data in tensors.items())
    return b"\x80\x02}(" + items + b"u."


def nested_modules():
    """Sixty modules, each of which has the one before twice."""

    def module(children):
        return (
            b"ctorch.nn.modules.container\nSequential\n)\x81}("
            + text("_parameters") + b"}" + text("_buffers") + b"}"
            + text("_modules") + b"}(" + children + b"uub"
        )  # fmt: skip

    data = b"\x80\x02" + module(b"") + b"q\0"
    for i in range(60):
        child = b"h" + bytes([i])
        children = text("a") + child + text("b") + child
        data += module(children) + b"q" + bytes([i + 1])
    return data + b"."


def huge_directory():
    """A zip file that says its list of members has nine million bytes."""
    size = 9 * MEBIBYTE
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, size, 4, 0)
    return b"PK\3\4" + bytes(size) + end


VOCABULARIES = {
    **PICKLES,
    "tuples as symbol": (b"\x80\x02]" + TUPLES + b"a.", "at least one char"),
    "zip bomb": (
        packed(
            b"\x80\x02" + b"N0" * (9 * MEBIBYTE),
            compression=zipfile.ZIP_DEFLATED,
        ),
        "compressed",
    ),
    "zip of many members": (huge_directory(), "damaged: BadZipFile"),
    "deep JSON": (b'["a",' + b"[" * 100_000, "nested too deeply"),
    "JSON of many lists": (b'["a"' + b",[]" * MEBIBYTE, "brackets"),
    "JSON of many numbers": (b'["a"' + b",0" * (3 * MEBIBYTE), "commas"),
    "JSON of ids of one hash": (
        json.dumps({f"a{i}": (2**61 - 1) * i for i in range(50_000)}).encode(),
        "ids of 50000 symbols must be 0 to 49999",
    ),
    "long text": (b"a " * (9 * MEBIBYTE), "18,874,368 bytes"),
    "half a character": (b'["\\ud800"]', "encoded in UTF-8"),
}

TORCH_FILES = {
    "tensor of stride 0": (
        packed(state(a=tensor((10**6, 10**6), (0, 0)))),
        "does not fit its configuration",
    ),
    "tensor beyond its numbers": (
        packed(state(a=tensor((1001,), (1,)))),
        "'a', which cannot be read",
    ),
    "tensor without numbers": (
        packed(state(a=tensor((3,), (1,)))).replace(b"model/data/0", b"x" * 12),
        "the numbers of tensors are missing",
    ),
    "another checksum": (
        packed(state(a=tensor((1000,), (1,)))).replace(b"\0" * 9, b"\1" * 9, 1),
        "the checksum of model/data/0 is wrong",
    ),
    "numbers to be negated": (
        packed(
            state(
                a=tensor((9,), (1,), metadata=b"}" + text("neg") + b"\x88s")
            )
        ),
        "expected no metadata",
    ),
    "modules in modules": (packed(nested_modules()), "contain each other"),
    "path as configuration": (
        packed(
            b"\x80\x02}(" + text("model_state") + state()[2:-1]
            + text("model_config") + text("/etc/passwd") + b"u."
        ),
        "holds no configuration",
    ),
}  # fmt: skip

# What a configuration asks for; the error shows the value.
SIZES = {
    "n_layer": 100_000,
    "vocab_size": 10**9,
    "d_inner": 10**9,
    "d_model": 10**8,
    "n_head": 10**12,
    "mem_len": 10**12,
    "dropout": "x",
}


def hugging_face_folder(folder, stored, changes):
    folder.mkdir()
    change_json(copy_stored(stored, folder) / "config.json", changes)
    return [str(folder)]


def calls(folder):
    """Returns what to read by name: loader, arguments, words of the error."""

    def written(name, content):
        path = folder / name.replace(" ", "_")
        path.write_bytes(content)
        return str(path)

    for name, (content, words) in VOCABULARIES.items():
        path = written(f"{name}.vocab", content)
        yield name, load_vocabulary, [path], words
    config = stored_config(PYTORCH)
    content, words = PICKLES["memo index"]
    for wrap in (packed, torch_legacy):
        path = written(wrap.__name__, wrap(content))
        yield wrap.__name__, load_pytorch, [path, config], words
    for name, (content, words) in TORCH_FILES.items():
        path = written(f"{name}.pt", content)
        given = [path] if name == "path as configuration" else [path, config]
        yield name, load_pytorch, given, words
    for key, value in SIZES.items():
        tf1 = {"n_token" if key == "vocab_size" else key: value}
        prefix = str(GOLDEN / TF1 / "model.ckpt")
        given = [prefix, {**stored_config(TF1), **tf1}]
        words = f"={value!r}"
        yield key, load_tf1, given, words
        if key not in ("n_layer", "d_model"):  # the loaders share the rest
            continue
        for loader, stored in (
            (load_hugging_face, "hf_wt103_like"),
            (load_hugging_face_xlnet, "hf_xlnet_bi"),
        ):
            path = folder / f"{stored}_{key}"
            given = hugging_face_folder(path, stored, {key: value})
            yield key, loader, given, words
    given = hugging_face_folder(folder / "header", "hf_wt103_like", {})
    header = struct.pack("<Q", 90_000_000) + b"{}"
    (folder / "header" / "model.safetensors").write_bytes(header)
    yield "header", load_hugging_face, given, "invalid header length"


def large_folder(folder):
    """Writes a table of 50 million bytes in float16."""
    model = TransformerXLCausalLM.from_preset(
        "quickstart",
        num_layers=1,
        vocabulary_size=200_000,
        cold_start="zeros",
        initializer_stddev=0.0,
    )
    save_hugging_face(model, folder / "large")
    path = folder / "large" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors = {name: x.astype("float16") for name, x in tensors.items()}
    safetensors.numpy.save_file(tensors, path)
    return str(folder / "large")


def size_of(path):
    path = pathlib.Path(path)
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.parent.rglob("*"))


def status(field):
    """Bytes that `/proc` reports: VmRSS is now, VmHWM the most ever."""
    text = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", text)[1])


@contextlib.contextmanager
def measured():
    """Yields an object whose `bytes` are the most memory that was taken."""
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, cost = status("VmRSS"), types.SimpleNamespace()
    yield cost
    cost.bytes = status("VmHWM") - before


@pytest.fixture
def limited_memory():
    """Limits memory, or a bomb would take the machine with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = status("VmSize") + (8 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("limited_memory")
def test_foreign_files_cost_little_and_are_refused_with_a_sentence(tmp_path):
    listed = [*calls(tmp_path)]
    assert len(listed) > 30
    for name, load, given, words in listed:
        print(name)  # if it fails, the last one is the cause
        with measured() as cost, pytest.raises(ValueError) as error:
            load(*given)
        assert words in str(error.value)
        assert len(str(error.value)) < 700
        assert cost.bytes < 4 * size_of(given[0]) + 200e6


@pytest.mark.usefixtures("limited_memory")
def test_a_good_file_is_read_in_little_memory(tmp_path):
    folder = large_folder(tmp_path)
    with measured() as cost:
        load_hugging_face(folder)
    size = pathlib.Path(folder, "model.safetensors").stat().st_size
    assert cost.bytes < 4 * size + 100e6


def damaged(data, rng):
    """The data cut short, or with a few bytes changed, left out or put in."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        i, change = rng.randrange(len(data)), rng.randrange(4)
        if change == 0:
            data[i] = rng.randrange(256)
        elif change == 1:
            del data[i : i + rng.choice([1, 5])]
        elif change == 2:
            return bytes(data[:i])
        else:
            data[i:i] = rng.choices(b"()]}ldteusbRc20hq.N\x85\x86\x93\x94", k=2)
    return bytes(data)


def test_whatever_is_damaged_is_refused_with_a_sentence(tmp_path):
    rng = random.Random(5)
    content = {"idx2sym": ["a", "b"], "sym2idx": {"a": 0, "b": 1}, "n": (1.5,)}
    pickled = state(a=tensor((3, 4), (4, 1)))
    files = [
        *((load_vocabulary, pickle.dumps(content, p)) for p in range(6)),
        (load_vocabulary, json.dumps(content).encode()),
        (load_torch, packed(pickled)),
        (load_torch, torch_legacy(pickled)),
    ]
    path, refused = tmp_path / "damaged", 0
    for i in range(90):
        load, data = files[i % len(files)]
        path.write_bytes(damaged(data, rng))
        try:
            loaded = load(path)
            if load is load_torch:
                dict(torch_tensors(*loaded, path))
        except ValueError as error:
            refused += 1
            assert str(path) in str(error)
            assert len(str(error)) < 700
    assert refused > 60


def test_a_large_index_of_a_checkpoint_is_not_read(tmp_path):
    shutil.copytree(GOLDEN / TF1, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "model.ckpt.index").open("r+b") as file:
        file.truncate(MEBIBYTE + 1)
    with pytest.raises(ValueError, match="index must have at most"):
        load_tf1(tmp_path, stored_config(TF1))

"""`save_to_preset` and `from_preset` of folders, runs and the Hub."""

import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import pickle
import shutil
import sys
import types

import keras
import numpy as np
import pytest
from factories import V
from factories import assert_same
from factories import change_json
from factories import feature_backbone
from factories import random_ids
from factories import save_run
from factories import small_backbone
from factories import small_model
from keras import ops
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from txl_keras import gfile
from txl_keras.checkpoints import load_hugging_face
from txl_keras.checkpoints import load_hugging_face_xlnet
from txl_keras.checkpoints import save_hugging_face
from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.models import XLNetBackbone
from txl_keras.models import XLNetPermutationLM
from txl_keras.models import upload_preset
from txl_keras.weights import weights_by_name

pytestmark = pytest.mark.every_backend
IDS = random_ids(2, 5)
FRAMES = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
TOKENIZER = CharacterTokenizer("abcdefghijk")
KERNEL = "block_0/attention/query/kernel"  # of shape (8, 2, 5)


def make_classifier(backbone=None):
    backbone = backbone or small_backbone(num_layers=1)
    return TransformerXLTextClassifier(
        backbone, num_classes=4, segment_length=3, tokenizer=TOKENIZER
    )


def make_causal_lm(**config):
    config = {"cutoffs": (4,), "div_val": 2, "num_layers": 1, **config}
    model = small_model(tie_projections="all_but_first", **config)
    model.tokenizer = TOKENIZER
    return model


MODELS = {
    # Two blocks that could change places; the others have one.
    "backbone": lambda: small_backbone(num_layers=2),
    "causal_lm": make_causal_lm,
    "classifier": make_classifier,
    "lstm": lambda: small_backbone(make=LSTMBackbone, num_layers=1),
    "features": lambda: feature_backbone(num_layers=1, normalize_first=True),
    "lstm_lm": lambda: small_model(make=LSTMBackbone, num_layers=1),
    "xlnet": lambda: small_backbone(make=XLNetBackbone, num_layers=1),
    "xlnet_lm": lambda: small_model(make=XLNetBackbone, num_layers=1),
}


def hidden_or_logits(model):
    ids = {"inputs": IDS} if isinstance(model, XLNetPermutationLM) else IDS
    if isinstance(model, TransformerXLCausalLM):
        model.reset_memory()
    if getattr(model, "vocabulary_size", 0) is None:
        return model(embeddings=FRAMES)[0]
    return keras.tree.flatten(model(ids))[0]


def assert_same_outputs(model, expected):
    np.testing.assert_array_equal(
        hidden_or_logits(model), hidden_or_logits(expected)
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models and their presets by name; tests must not change them."""
    folders = {}
    for name, make in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        model = make()
        model.save_to_preset(folder, training={"corpus": "tiny"})
        folders[name] = model, folder
    return folders


@pytest.fixture
def folder(saved, tmp_path):
    """A preset of a causal LM, to be damaged."""
    shutil.copytree(saved["causal_lm"][1], tmp_path / "preset")
    return tmp_path / "preset"


# --------------------------------- Presets ---------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_with_all_that_it_was(name, saved):
    model, folder = saved[name]
    loaded = type(model).from_preset(folder)
    assert type(loaded) is type(model)
    ours, expected = loaded.get_config(), model.get_config()
    assert ours == expected
    assert_same_outputs(loaded, model)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer:
        copy = type(model).from_config(ours)
        for same in (loaded, copy):
            assert tokenizer_hash(same.tokenizer) == tokenizer_hash(tokenizer)
    assert os.path.exists(folder / "tokenizer.json") == bool(tokenizer)


def test_a_preset_is_json_and_safetensors_alone(saved):
    model, folder = saved["causal_lm"]
    assert sorted(os.listdir(folder)) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors) == len(model.weights)
    for name, weight in weights_by_name(model).items():
        np.testing.assert_array_equal(tensors[name], weight)
    assert KERNEL in tensors
    content = json.loads((folder / "config.json").read_text())
    assert content["class_name"] == "TransformerXLCausalLM"
    assert content["training"] == {"corpus": "tiny"}


def test_weights_are_saved_as_bfloat16_and_loaded_as_float32(saved, tmp_path):
    model, _ = saved["causal_lm"]
    model.save_to_preset(tmp_path, dtype="bfloat16")
    loaded = TransformerXLCausalLM.from_preset(tmp_path)
    assert loaded.compute_dtype == "float32"
    for weight, exact in zip(loaded.weights, model.weights, strict=True):
        rounded = ops.cast(ops.cast(exact, "bfloat16"), "float32")
        np.testing.assert_array_equal(weight, rounded)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {array.dtype.name for array in tensors.values()} == {"bfloat16"}
    with pytest.raises(ValueError, match="`dtype` must be one of .*'float16"):
        model.save_to_preset(tmp_path, dtype="float16")


@pytest.mark.parametrize("name", ["causal_lm", "lstm_lm", "xlnet_lm"])
def test_matrices_are_saved_as_int8_and_loaded_as_float32(
    name, saved, tmp_path
):
    model, _ = saved[name]
    model.save_to_preset(tmp_path, dtype="int8")
    file = load_file(tmp_path / "model.safetensors")
    loaded = type(model).from_preset(tmp_path)
    assert loaded.get_config() == model.get_config()
    ours, exact = weights_by_name(loaded), weights_by_name(model)
    for weight_name, weight in exact.items():
        assert ours[weight_name].dtype == "float32"
        if weight_name in file and f"{weight_name}/scale" in file:
            assert file.pop(weight_name).dtype == "int8"
            bound = file.pop(f"{weight_name}/scale") * (0.5 + 1e-4)
            error = np.abs(np.array(ours[weight_name]) - np.array(weight))
            assert (error <= bound).all()
    # Layer norms and all biases.
    left = {n for n, weight in exact.items() if len(weight.shape) == 1}
    left |= {n for n in exact if n.endswith("attention_bias")}
    assert file.keys() == left
    for weight_name, array in file.items():
        np.testing.assert_array_equal(array, exact[weight_name])
        np.testing.assert_array_equal(array, ours[weight_name])


def test_overrides_and_dtype_take_the_place_of_what_was_saved(saved):
    model, folder = saved["causal_lm"]
    loaded = TransformerXLCausalLM.from_preset(
        folder, dtype="mixed_bfloat16", dropout=0.3, memory_length=9
    )
    assert (loaded.backbone.dropout, model.backbone.dropout) == (0.3, 0.0)
    assert loaded.initial_memory(1).length == 9
    assert loaded.compute_dtype == loaded.backbone.compute_dtype == "bfloat16"
    np.testing.assert_array_equal(loaded.weights[-1], model.weights[-1])
    assert loaded.backbone.initializer_stddev == 0.3
    other = WordTokenizer([*"abcdefghij", "<eos>"])
    loaded = TransformerXLCausalLM.from_preset(folder, tokenizer=other)
    assert loaded.tokenizer is other
    assert not TransformerXLCausalLM.from_preset(
        folder, tokenizer=None
    ).tokenizer


def test_without_weights_they_are_new_and_sizes_may_differ(saved):
    _, folder = saved["causal_lm"]
    loaded = TransformerXLCausalLM.from_preset(
        folder, load_weights=False, num_layers=2, tie_projections=True
    )
    assert loaded.tokenizer and loaded.backbone.num_layers == 2
    ours = loaded.backbone.token_embedding.weights[0].numpy()
    assert 0.2 < ours.std() < 0.4
    with pytest.raises(ValueError, match="unless load_weights=False.*'num_l"):
        TransformerXLCausalLM.from_preset(folder, num_layers=2)


def test_a_language_model_gives_its_backbone(saved):
    for name, backbone_class in (
        ("causal_lm", TransformerXLBackbone),
        ("classifier", TransformerXLBackbone),
        ("lstm_lm", LSTMBackbone),
        ("xlnet_lm", XLNetBackbone),
    ):
        model, folder = saved[name]
        backbone = backbone_class.from_preset(folder, dropout=0.2)
        assert type(backbone) is backbone_class
        assert backbone.dropout == 0.2
        assert_same_outputs(backbone, model.backbone)


def test_arguments_that_a_language_model_refuses_are_for_others(saved):
    model, folder = saved["causal_lm"]
    backbone = TransformerXLBackbone.from_preset(folder, stateful=True)
    ids = np.arange(3)[None]
    _, memory = model.backbone(ids)
    expected, _ = model.backbone(ids, memory=memory)
    backbone(ids)
    assert_same([backbone(ids)[0]], [expected])
    classifier = TransformerXLTextClassifier.from_preset(
        folder, num_classes=3, look_ahead=2
    )
    assert classifier.backbone.look_ahead == 2
    assert_same(classifier.backbone.weights, model.backbone.weights)
    with pytest.raises(ValueError, match="must have look_ahead=0"):
        TransformerXLCausalLM.from_preset(folder, look_ahead=2)


@pytest.mark.parametrize("name", ["causal_lm", "backbone", "lstm_lm"])
def test_a_classifier_takes_a_backbone_and_gets_a_new_head(name, saved):
    model, folder = saved[name]
    loaded = TransformerXLTextClassifier.from_preset(
        folder, num_classes=3, pooling="mean"
    )
    backbone = getattr(model, "backbone", model)
    assert_same(loaded.backbone.weights, backbone.weights)
    assert loaded.logits.kernel.shape == (8, 3)
    assert np.std(loaded.logits.kernel.numpy()) > 0
    assert bool(loaded.tokenizer) == (name == "causal_lm")
    with pytest.raises(ValueError, match=r"\['num_classes'\] must be passed"):
        TransformerXLTextClassifier.from_preset(folder)


@pytest.mark.parametrize(
    "name, model_class, held",
    [
        ("backbone", TransformerXLCausalLM, "TransformerXLBackbone"),
        ("classifier", TransformerXLCausalLM, "TransformerXLTextClassifier"),
        ("lstm_lm", TransformerXLBackbone, "CausalLM with a LSTMBackbone"),
        ("causal_lm", XLNetBackbone, "TransformerXLCausalLM"),
        ("causal_lm", XLNetPermutationLM, "TransformerXLCausalLM"),
        ("xlnet_lm", TransformerXLCausalLM, "XLNetPermutationLM"),
        ("xlnet", TransformerXLTextClassifier, "XLNetBackbone"),
    ],
)
def test_a_model_that_cannot_give_another_is_named(
    name, model_class, held, saved
):
    _, folder = saved[name]
    message = f"must hold a {model_class.__name__}.*which holds a .*{held}"
    arguments = {}
    if model_class is TransformerXLTextClassifier:
        arguments["num_classes"] = 2
    with pytest.raises(ValueError, match=message):
        model_class.from_preset(folder, **arguments)


def test_unknown_arguments_are_named(saved):
    _, folder = saved["causal_lm"]
    message = "TransformerXLBackbone: .*'tokenizer'.*Received: .'num_layer'"
    with pytest.raises(ValueError, match=message):
        TransformerXLCausalLM.from_preset(folder, num_layer=3)
    _, folder = saved["lstm_lm"]
    with pytest.raises(ValueError, match="LSTMBackbone: .*'memory_length'"):
        TransformerXLCausalLM.from_preset(folder, memory_length=3)


@pytest.mark.parametrize("preset", ["nowhere", "", None, "hf:/a/b"])
def test_what_is_no_preset_is_refused_with_the_known(preset):
    message = "must be .* one of .*'quickstart'.*folder, or 'hf://owner/name'"
    with pytest.raises(ValueError, match=message):
        TransformerXLCausalLM.from_preset(preset)
    with pytest.raises(ValueError, match="`preset` must be the path of a fo"):
        XLNetPermutationLM.from_preset(preset)


# ----------------------------- Damaged presets -----------------------------


EVIL = {
    "module": "keras.layers",
    "class_name": "Lambda",
    "config": {"function": "x"},
    "registered_name": None,
}


# `tests/models/model_config_test.py` has what else `config` may say.
@pytest.mark.parametrize(
    "fields, message",
    [
        ({"class_name": "Lambda"}, "is one of .*'LSTMBackbone'.*Lambda"),
        ({"class_name": ...}, "that of a preset or a run, with `class_name`"),
        ({"module": "os"}, "has the unknown key 'module'"),
        ({"config.backbone": EVIL}, "class_name` that is one of .*'Lambda'"),
        ({"config.function": "x"}, "`config` has the unknown key 'function'"),
        ({"config.tokenizer": EVIL}, "unknown tokenizer.*'Lambda'"),
        ({"config.backbone.config.vocabulary_size": 10**9}, "another model"),
        ({"config.backbone.config.name": "a b"}, "`name` must consist of"),
        ({"config.backbone.config.name": ""}, "`name` must consist of"),
        ({"config.frozen": 5}, "does not describe a TransformerXLCausalLM"),
        ({"config.frozen": [["x"]]}, "does not describe"),
        ({"config.backbone.config.frozen": True}, "does not describe"),
        ({"config.backbone.config.frozen": ["x"]}, "paths of layers.*'x'"),
        ({"weights": "0"}, "not the file that was saved with the config"),
        ({"tokenizer": "0"}, "not the tokenizer of the model"),
        ({"tokenizer": ...}, "not the tokenizer of the model.*is None"),
    ],
    ids=str,
)
def test_a_config_that_lies_is_refused(fields, message, folder):
    change_json(folder / "config.json", fields)
    with pytest.raises(ValueError, match=message) as error:
        TransformerXLCausalLM.from_preset(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json"]
)
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        TransformerXLCausalLM.from_preset(folder)


def test_without_its_tokenizer_a_backbone_is_loaded_all_the_same(folder):
    (folder / "tokenizer.json").unlink()
    TransformerXLBackbone.from_preset(folder)
    assert TransformerXLCausalLM.from_preset(folder, tokenizer=TOKENIZER)


def test_truncated_and_changed_weights_are_refused(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match=f"{path} .* damaged or cut short"):
        TransformerXLCausalLM.from_preset(folder)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{path} is damaged, or is not"):
        TransformerXLCausalLM.from_preset(folder)


SCALE = f"{KERNEL}/scale"


@pytest.fixture(scope="module")
def int8_folder(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    saved["causal_lm"][0].save_to_preset(folder, dtype="int8")
    return folder


@pytest.mark.parametrize(
    "changes, message",
    [
        ({SCALE: None}, f"'{KERNEL}' must be .* beside '{SCALE}'.*I8"),
        ({SCALE: np.ones((1, 2, 4), "f4")}, f"'{SCALE}' must be F32 of"),
        ({SCALE: np.ones(10, "f4")}, f"'{SCALE}' must be F32 of"),
        ({SCALE: np.ones((1, 2, 5), "f8")}, f"'{SCALE}' must be F32 of"),
        ({SCALE: np.full((1, 2, 5), np.nan, "f4")}, f"{KERNEL} is not finite"),
        ({KERNEL: np.ones((8, 2, 5), "f4")}, f"{SCALE}"),
        (
            {KERNEL: np.ones((8, 5, 2), "i1"), SCALE: np.ones((1, 1, 1), "f4")},
            rf"of another model: weights/{KERNEL} is \(8, 5, 2\)",
        ),
        ({KERNEL: None}, f"{KERNEL} is missing"),
        (
            {KERNEL: np.full((8, 2, 5), 1e300), SCALE: None},  # too much
            f"damaged: {KERNEL} is not finite",
        ),
    ],
    ids=range(9),
)
def test_wrong_weights_and_scales_of_int8_are_named(
    changes, message, int8_folder, tmp_path
):
    shutil.copytree(int8_folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    file = {**load_file(path), **changes}
    save_file({n: a for n, a in file.items() if a is not None}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change_json(tmp_path / "config.json", {"weights": digest})
    with pytest.raises(ValueError, match=message) as error:
        TransformerXLCausalLM.from_preset(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_the_tokenizer_of_another_vocabulary_is_refused(folder, other):
    with pytest.raises(ValueError, match="a tokenizer of .*tokenizer=5"):
        TransformerXLCausalLM.from_preset(folder, tokenizer=5)
    words = WordTokenizer(["<eos>", "b"])
    with pytest.raises(ValueError, match="as many symbols as the model, 11"):
        TransformerXLCausalLM.from_preset(folder, tokenizer=words)
    other.save_to_preset(folder.parent / "other")
    shutil.copy(folder.parent / "other" / "tokenizer.json", folder)
    with pytest.raises(ValueError, match="not the tokenizer of the model"):
        TransformerXLCausalLM.from_preset(folder)


def test_links_out_of_the_folder_are_refused(folder):
    path = folder / "model.safetensors"
    outside = folder.parent / "weights"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(ValueError, match=f"{path}, a link to {outside}"):
        TransformerXLCausalLM.from_preset(folder)
    path.unlink()
    outside.rename(folder / "inside")
    path.symlink_to("inside")
    linked = folder.parent / "linked"
    linked.symlink_to(folder)
    assert TransformerXLCausalLM.from_preset(linked)


# --------------------------------- Saving ----------------------------------


@pytest.mark.tensorflow
def test_a_preset_is_replaced_and_nothing_else_is(saved, folder, tmp_path):
    small_model(num_layers=2).save_to_preset(folder)
    assert TransformerXLCausalLM.from_preset(folder).backbone.num_layers == 2
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    model = load_hugging_face("tests/testdata/golden/hf_plain")
    save_hugging_face(model, tmp_path / "hf")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    save_run(tmp_path / "run", saved["causal_lm"][0], 5, TOKENIZER)
    for name, held in (
        *(("hf", "config.json"), ("notes", "a.txt"), ("file", "")),
        ("run", "checkpoints"),
    ):
        before = (tmp_path / name).stat().st_mtime_ns
        message = f"new, empty, or a preset.*{name}, which holds .*{held}"
        with pytest.raises(ValueError, match=message):
            model.save_to_preset(tmp_path / name)
        assert (tmp_path / name).stat().st_mtime_ns == before
    for folder in ("", None):
        with pytest.raises(ValueError, match="a path that is not empty"):
            model.save_to_preset(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_save_writes_through_no_link(name, saved, folder, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (folder / name).unlink()
    (folder / name).symlink_to(outside)
    model, _ = saved["causal_lm"]
    model.save_to_preset(folder)
    assert outside.read_text() == "mine"
    assert_same_outputs(TransformerXLCausalLM.from_preset(folder), model)


def test_a_folder_in_place_of_a_file_is_named(saved, folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(OSError, match="could not be written: .*Is a dir"):
        saved["causal_lm"][0].save_to_preset(folder)


@pytest.fixture(scope="module")
def other():
    """A model with another tokenizer than `saved`; tests must not change it."""
    model = make_causal_lm(initializer_stddev=0.2)
    model.tokenizer = CharacterTokenizer("kjihgfedcba")
    return model


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_an_interrupted_save_leaves_no_folder_that_loads_wrongly(
    last, folder, saved, other, monkeypatch
):
    """After the `last` rename of the new files no other happens."""
    model, _ = saved["causal_lm"]
    rename, renamed = gfile.rename, []

    def rename_some(source, target, **options):
        if not target.endswith(".tmp"):
            if len(renamed) == last:
                raise KeyboardInterrupt
            renamed.append(target)
        rename(source, target, **options)

    monkeypatch.setattr(gfile, "rename", rename_some)
    with contextlib.suppress(KeyboardInterrupt):
        other.save_to_preset(folder)
    monkeypatch.undo()
    assert len(renamed) == last
    if last in (0, 3):
        expected = other if last else model
        assert_same_outputs(TransformerXLCausalLM.from_preset(folder), expected)
        return
    with pytest.raises(ValueError, match="is not the (file|tokenizer)"):
        TransformerXLCausalLM.from_preset(folder)
    other.save_to_preset(folder)
    assert_same_outputs(TransformerXLCausalLM.from_preset(folder), other)


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path):
    class Mine(TransformerXLCausalLM):
        pass

    model = Mine(small_backbone(num_layers=1))
    with pytest.raises(ValueError, match="one of .*'XLNetBackbone'.*'Mine'"):
        model.save_to_preset(tmp_path)
    model = small_model(num_layers=1)
    model.softmax.biases[0].assign(np.full(V, np.nan))
    with pytest.raises(FloatingPointError, match="softmax/bias_0 is not fin"):
        model.save_to_preset(tmp_path)
    model = make_classifier()
    pairs = [[i, 2.5] for i in range(37_000)]  # on lines of their own
    for training in ({"a": {1, 2}}, ["a"], {"a": "x" * 600_000}, {"a": pairs}):
        with pytest.raises(ValueError, match="`training` must be None or a di"):
            model.save_to_preset(tmp_path, training=training)
    model.backbone.intermediate_dim += 1
    with pytest.raises(ValueError, match="weights .*feed_forward"):
        model.save_to_preset(tmp_path)
    assert not os.listdir(tmp_path)


def test_a_subclass_is_loaded_as_what_it_is_called_on(saved):
    class Mine(TransformerXLCausalLM):
        pass

    class MyBackbone(TransformerXLBackbone):
        pass

    model, folder = saved["causal_lm"]
    loaded = Mine.from_preset(folder)
    assert type(loaded) is Mine
    assert_same_outputs(loaded, model)
    with pytest.raises(ValueError, match="must hold a MyBackbone"):
        MyBackbone.from_preset(folder)
    with pytest.raises(ValueError, match="must hold a Mine"):
        Mine.from_preset("tests/testdata/golden/hf_plain")


# ---------------------- Runs, Hugging Face and the Hub ----------------------


@pytest.mark.tensorflow
def test_a_run_is_a_preset_of_its_best_weights(tmp_path, saved):
    from txl_keras.training.checkpointing import copies

    model, _ = saved["causal_lm"]
    run = save_run(tmp_path / "run", model, 5, TOKENIZER)
    shutil.rmtree(run.model)
    with pytest.raises(FileNotFoundError, match="no best weights"):
        TransformerXLCausalLM.from_preset(run.path)
    best = make_causal_lm(initializer_stddev=0.1)
    run.save_best(copies(weights_by_name(best)), 3)
    loaded = TransformerXLCausalLM.from_preset(run.path, memory_length=4)
    assert loaded.backbone.memory_length == 4
    assert_same_outputs(TransformerXLCausalLM.from_preset(run.path), best)
    assert tokenizer_hash(loaded.tokenizer) == tokenizer_hash(TOKENIZER)
    backbone = TransformerXLBackbone.from_preset(tmp_path / "run")
    assert_same_outputs(backbone, best.backbone)
    with pytest.raises(ValueError, match="unless load_weights=False"):
        TransformerXLCausalLM.from_preset(run.path, intermediate_dim=7)


@pytest.fixture
def hugging_face(tmp_path):
    """A folder of `save_pretrained`, with the pickle of its vocabulary."""
    shutil.copytree("tests/testdata/golden/hf_plain", tmp_path / "hf")
    words = ["<unk>", "<eos>", *(f"w{i}" for i in range(39))]
    with open(tmp_path / "hf" / "vocab.pkl", "wb") as file:
        pickle.dump({"idx2sym": words}, file)
    return tmp_path / "hf"


def test_a_folder_of_hugging_face_is_loaded_with_its_vocabulary(hugging_face):
    expected = load_hugging_face(hugging_face)
    loaded = TransformerXLCausalLM.from_preset(hugging_face)
    assert_same_outputs(loaded, expected)
    assert loaded.tokenizer.line_end == "<eos>"
    assert loaded.tokenizer.vocabulary_size == 41
    backbone = TransformerXLBackbone.from_preset(hugging_face)
    assert_same_outputs(backbone, expected.backbone)
    classifier = TransformerXLTextClassifier.from_preset(
        hugging_face, num_classes=2, memory_length=3
    )
    assert classifier.backbone.memory_length == 3
    assert classifier.tokenizer.vocabulary_size == 41
    new = TransformerXLCausalLM.from_preset(hugging_face, load_weights=False)
    assert not np.array_equal(new.weights[-1], expected.weights[-1])
    for arguments, message in (
        ({"num_layers": 1}, "does not fit its configuration"),
        ({"tie_embeddings": False}, r"only `tokenizer`.*\['tie_embeddings'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            TransformerXLCausalLM.from_preset(hugging_face, **arguments)
    with pytest.raises(ValueError, match="model_type 'xlnet'"):
        XLNetPermutationLM.from_preset(hugging_face)


def test_a_vocabulary_of_another_model_or_with_code_is_refused(hugging_face):
    path = hugging_face / "vocab.pkl"
    path.write_bytes(pickle.dumps({"idx2sym": ["<eos>", "b"]}))
    with pytest.raises(ValueError, match="as many symbols as the model"):
        TransformerXLCausalLM.from_preset(hugging_face)
    path.write_bytes(b"\x80\x02cos\nsystem\n(X\x06\0\0\0exit 1tR.")
    with pytest.raises(ValueError, match=f"{path} .*os.system"):
        TransformerXLCausalLM.from_preset(hugging_face)
    assert TransformerXLCausalLM.from_preset(hugging_face, tokenizer=None)


def test_an_xlnet_of_hugging_face_is_loaded():
    folder = "tests/testdata/golden/hf_xlnet_bi"
    backbone = XLNetBackbone.from_preset(folder, memory_length=3)
    assert backbone.memory_length == 3
    expected = load_hugging_face_xlnet(folder, memory_length=3)
    assert_same_outputs(backbone, expected)
    with pytest.raises(ValueError, match="which holds a XLNetBackbone"):
        XLNetPermutationLM.from_preset(folder)
    with pytest.raises(ValueError, match="model_type 'transfo-xl'"):
        TransformerXLCausalLM.from_preset(folder)


class Hub(types.ModuleType):
    """Stands in for huggingface_hub, with one repository and its cache."""

    def __init__(self, folder, cache):
        super().__init__("huggingface_hub")
        self.folder, self.cache, self.calls = folder, cache, []

    def create_repo(self, repo_id, exist_ok):
        assert exist_ok
        self.calls.append(f"create {repo_id}")

    def upload_folder(
        self, *, repo_id, folder_path, allow_patterns, delete_patterns
    ):
        self.calls.append(f"upload {repo_id}")
        self.folder.mkdir(exist_ok=True)
        for name in delete_patterns:
            (self.folder / name).unlink(missing_ok=True)
        for name in allow_patterns:
            path = pathlib.Path(folder_path) / name
            if path.exists():
                shutil.copy(path, self.folder)

    def snapshot_download(self, repo_id, allow_patterns):
        self.calls.append(repo_id)
        snapshot = self.cache / "snapshots" / "0a1b"
        snapshot.mkdir(parents=True, exist_ok=True)
        blobs, shared = self.cache / "blobs", self.cache.parent / "blobs"
        blobs.mkdir(exist_ok=True)
        shared.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            is_wanted = any(
                fnmatch.fnmatch(path.name, p) for p in allow_patterns
            )
            if is_wanted and not (snapshot / path.name).exists():
                blob = f"{path.name}-blob"
                shutil.copy(path, shared / blob)
                (blobs / blob).symlink_to(f"../../blobs/{blob}")
                (snapshot / path.name).symlink_to(f"../../blobs/{blob}")
        return str(snapshot)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    def make(folder):
        hub = Hub(folder, tmp_path / "cache")
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        return hub

    return make


def test_a_preset_is_downloaded_without_what_is_not_needed(hub, folder, saved):
    (folder / "events").write_text("large")
    (folder / "pytorch_model.bin").write_text("large")
    calls = hub(folder)
    model, _ = saved["causal_lm"]
    loaded = TransformerXLCausalLM.from_preset("hf://me/my-model.v1")
    assert_same_outputs(loaded, model)
    assert loaded.tokenizer
    assert calls.calls == ["me/my-model.v1"]
    snapshot = calls.cache / "snapshots" / "0a1b"
    assert sorted(os.listdir(snapshot)) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_weights_of_pytorch_are_downloaded_if_there_are_no_others(
    hub, hugging_face
):
    weights = hugging_face / "model.safetensors"
    weights.rename(hugging_face / "pytorch_model.bin")
    calls = hub(hugging_face)
    with pytest.raises(ValueError, match="pytorch_model.bin cannot be read"):
        TransformerXLCausalLM.from_preset("hf://transfo-xl/transfo-xl-wt103")
    assert len(calls.calls) == 2


def test_a_preset_is_uploaded_and_found_by_others(hub, folder, tmp_path):
    (folder / "notes.txt").write_text("mine")
    (folder / "README.md").write_text("A card")
    calls = hub(tmp_path / "there")
    upload_preset("hf://me/mine", folder)
    assert calls.calls == ["create me/mine", "upload me/mine"]
    names = ["README.md", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(os.listdir(tmp_path / "there")) == names
    loaded = TransformerXLCausalLM.from_preset("hf://me/mine")
    assert loaded.tokenizer
    loaded.tokenizer = None
    loaded.save_to_preset(folder)
    upload_preset("hf://me/mine", folder)
    assert not (tmp_path / "there" / "tokenizer.json").exists()
    for uri in ("mine", "kaggle://me/mine"):
        with pytest.raises(ValueError, match=f"`uri` must be 'hf.*{uri}"):
            upload_preset(uri, folder)
    with pytest.raises(ValueError, match="`preset` must be a folder that"):
        upload_preset("hf://me/mine", tmp_path)


@pytest.mark.parametrize("name", ["", "a", "a/b/c", "../b", "a/..", "a/b?c"])
def test_the_name_of_a_repository_is_checked(name, hub, folder):
    calls = hub(folder)
    with pytest.raises(ValueError, match="must be 'hf://owner/name'"):
        TransformerXLCausalLM.from_preset(f"hf://{name}")
    assert not calls.calls


def test_without_the_hubs_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        TransformerXLCausalLM.from_preset("hf://a/b")

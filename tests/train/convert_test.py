"""Runs train/convert.py."""

import json
import pathlib

import numpy as np
import pytest
from factories import assert_same
from factories import save_run
from factories import small_model

from txl_keras.checkpoints import load_tf1
from txl_keras.data import ByteTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.workdir import Workdir

GOLDEN = pathlib.Path(__file__).parents[1] / "testdata" / "golden"
TF1 = GOLDEN / "wt103_large_like"
WORDS = ["<eos>", "<unk>", *(f"word{i}" for i in range(58))]


@pytest.fixture
def published(tmp_path):
    """Flags of a published TensorFlow 1 model."""
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    return (
        "--input_format=tf1",
        f"--input={TF1 / 'model.ckpt'}",
        f"--config={TF1 / 'config.json'}",
        f"--vocabulary={tmp_path / 'words.txt'}",
    )


@pytest.fixture
def convert(succeed):
    """Function that converts a format and an input to an output."""

    def convert(input_format, source, output, *flags):
        return succeed(
            "convert.py", f"--input_format={input_format}", f"--input={source}",
            f"--output={output}", *flags,
        )  # fmt: skip

    return convert


def test_a_published_model_becomes_a_preset(published, succeed, tmp_path):
    run = Workdir(str(tmp_path / "run"))
    printed = succeed("convert.py", *published, f"--output={run.path}")
    original = load_tf1(TF1 / "model.ckpt", TF1 / "config.json")
    written = f"{original.count_params():,} weights written to {run.path}"
    assert written in printed
    converted, _ = run.load_model()
    assert_same(converted.weights, original.weights)
    ids = run.load_tokenizer().encode("word3 new\nword4\n").tolist()
    assert [WORDS[i] for i in ids] == [
        "word3", "<unk>", "<eos>", "word4", "<eos>"
    ]  # fmt: skip


def test_a_published_model_of_bytes_reads_text(convert, tmp_path):
    golden, output = GOLDEN / "enwik8_like", tmp_path / "run"
    size = json.loads((golden / "config.json").read_text())["n_token"]
    numbers = [*range(98, 98 + size - 2), 195, 169]  # b, c, ..., and é
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("".join(f"{number}\n" for number in numbers))
    convert(
        "tf1", golden / "model.ckpt", output, "--symbols=bytes",
        f"--config={golden / 'config.json'}", f"--vocabulary={vocabulary}",
    )  # fmt: skip
    tokenizer = Workdir(str(output)).load_tokenizer()
    ids = tokenizer.encode("cé\nb").tolist()
    assert ids == [1, size - 2, size - 1, 0]
    assert tokenizer.decode(ids) == "céb"


def test_what_cannot_be_converted_leaves_nothing(published, refuse, tmp_path):
    short, digits, deeper, full = (
        tmp_path / name for name in ("short", "digits", "deeper", "full")
    )
    short.write_text("\n".join(WORDS[:-1]))
    digits.write_text("٣\n7\n")
    config = json.loads((TF1 / "config.json").read_text())
    deeper.write_text(json.dumps({**config, "n_layer": 3}))
    full.mkdir()
    (full / "mine.txt").write_text("dear to me")
    before = sorted(tmp_path.rglob("*"))
    cases = (
        ([f"--vocabulary={short}"], ["60 symbols", "59 symbols"]),
        (["--config="], ["`config` must be given"]),
        (
            [f"--config={deeper}"],
            ["missing: transformer/layer_2/rel_attn/qkv/kernel", "layer_2/ff"],
        ),
        (
            ["--input_format=hugging_face"],
            ["`config` can only", "input_format=tf1 or pytorch"],
        ),
        (["--line_end=none"], ["`line_end`", "'none'"]),
        (
            ["--line_end=", f"--vocabulary={short}"],
            ["60 symbols", "59 symbols"],
        ),
        (["--unknown=", f"--vocabulary={short}"], ["60 symbols", "59 symbols"]),
        ([f"--output={full}"], ["`output`", "full"]),
        (["--input="], ["`prefix`"]),
        (["--unknown=none"], ["`unknown`", "none"]),
        (["--symbols=bytes", "--line_end=x"], ["`line_end`", "symbols=words"]),
        (
            ["--symbols=bytes", f"--vocabulary={digits}"],
            ["symbols=bytes", "from 0 to 255", "'٣'"],
        ),
        (["--output_format=hugging_face"], ["`vocabulary`", "words.txt"]),
    )
    refuse("convert.py", cases, *published, f"--output={tmp_path / 'new'}")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_best_weights_of_a_run_are_converted(convert, tmp_path):
    run, output = tmp_path / "run", Workdir(str(tmp_path / "output"))
    latest, best = (
        small_model(num_layers=1, initializer_stddev=stddev)
        for stddev in (0.1, 0.2)
    )
    save_run(run, latest, 20, best=(best, 10), flags={"seed": 7})
    convert("workdir", run, output.path)
    converted, step = output.load_model()
    assert step == 10
    assert output.read_config()["flags"]["seed"] == 7
    assert_same(converted.weights, best.weights)


def test_the_average_of_a_run_is_a_preset(run, convert, fail, tmp_path):
    output = tmp_path / "average"
    convert("workdir", run[0], output, "--average")
    model, step = Workdir(str(output)).load_model()
    latest, _ = Workdir(str(run[0])).load_model()
    assert step == 60
    for weight, newest in zip(
        model.get_weights(), latest.get_weights(), strict=True
    ):
        assert 1e-5 < np.abs(weight - newest).max() < 0.2
    assert model.tokenizer is not None
    config = json.loads((output / "config.json").read_text())
    assert config["training"]["averaged_steps"] == [40, 60]
    before = (output / "config.json").read_bytes()
    fail(
        "convert.py", "--input_format=workdir", f"--input={run[0]}",
        f"--output={output}", messages=["`output` must be a new", str(output)],
    )  # fmt: skip
    assert (output / "config.json").read_bytes() == before


def test_a_preset_is_copied(succeed, fail, tmp_path):
    model = small_model(num_layers=1, vocabulary_size=256)
    model.tokenizer = ByteTokenizer()
    training = {"segment_length": 24, "step": 70, "learning_rate": 0.5}
    model.save_to_preset(tmp_path / "preset", training)
    output = Workdir(str(tmp_path / "run"))
    flags = ("convert.py", "--input_format=preset", f"--output={output.path}")
    fail(*flags, "--input=quickstart", messages=["`input`", "with weights"])
    succeed(*flags, f"--input={tmp_path / 'preset'}")
    converted, step = output.load_model()
    assert step == 70
    assert training.items() <= output.read_config()["flags"].items()
    assert output.load_tokenizer().vocabulary_size == 256
    assert_same(converted.weights, model.weights)


def test_a_tokenizer_goes_to_hugging_face_and_back(here, tmp_path):
    sizes = {"num_layers": 1, "head_dim": 4, "vocabulary_size": 4}
    model = small_model(**sizes, cold_start="zeros")
    words = ["<eos>", "<unk>", "the", "cat"]
    tokenizer = WordTokenizer(words)
    run, folder, back = (tmp_path / name for name in ("run", "hf", "back"))
    save_run(run, model, 3, tokenizer)
    to = ("--input_format=workdir", f"--input={run}", f"--output={folder}")
    here("convert.py", *to, "--output_format=hugging_face")
    modes = {path.name: path.stat().st_mode for path in folder.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]
    flags = (
        "--input_format=hugging_face", f"--input={folder}",
        f"--vocabulary={run}/tokenizer.json", f"--output={back}",
    )  # fmt: skip
    assert here("convert.py", *flags)[1] is None
    returned = Workdir(str(back)).load_tokenizer()
    assert returned.get_config() == tokenizer.get_config()
    # A preset, too, of which it is not known how it was trained.
    copied = f"--input={folder}", f"--output={tmp_path / 'copied'}"
    assert here("convert.py", "--input_format=preset", *copied)[1] is None
    assert Workdir(str(tmp_path / "copied")).training()["step"] == 0

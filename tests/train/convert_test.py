"""Runs train/convert.py."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import save_run
from factories import small_model
from script_runs import evaluation_of

from txl_keras.checkpoints import load_tf1
from txl_keras.data import ByteTokenizer
from txl_keras.data import Segments
from txl_keras.data import WordTokenizer
from txl_keras.data import load_corpus
from txl_keras.workdir import Workdir

GOLDEN = pathlib.Path(__file__).parents[1] / "testdata" / "golden"
TF1 = GOLDEN / "wt103_large_like"
WORDS = ["<eos>", "<unk>", *(f"word{i}" for i in range(58))]


@pytest.fixture
def published(tmp_path):
    """Flags of a published TensorFlow 1 model, and a text of its words."""
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    numbers = np.random.default_rng(0).integers(0, 58, (240, 9))
    lines = [" ".join(f"word{i}" for i in line) + "\n" for line in numbers]
    (tmp_path / "text.txt").write_text("".join(lines) + "new words\n")
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


@pytest.mark.large
def test_a_published_model_becomes_a_preset(published, succeed, tmp_path):
    run = tmp_path / "run"
    printed = succeed("convert.py", *published, f"--output={run}")
    original = load_tf1(TF1 / "model.ckpt", TF1 / "config.json")
    assert f"{original.count_params():,} weights written to {run}" in printed

    # Scored as the original is, segment for segment.
    text = tmp_path / "text.txt"
    flags = (f"--workdir={run}", f"--corpus={text}", "--batch_size=1")
    succeed("evaluate.py", *flags, "--segment_length=7")
    scores = evaluation_of(run)
    words = load_corpus(str(text)).read("test").decode()
    words = words.replace("\n", " <eos> ").replace("new words", "<unk> <unk>")
    ids = np.array([WORDS.index(word) for word in words.split()])
    assert scores["num_tokens"] == len(ids) - 1
    assert scores["segment_length"] == 7
    nll, memory = 0.0, None
    segments = Segments(ids, 1, 7, drop_remainder=False)
    for i in range(len(segments)):
        batch = segments.batch(i)
        part, memory = original.score(batch["inputs"], batch["targets"], memory)
        nll += float(tf.reduce_sum(part * batch["weights"]))
    assert scores["nll"] == pytest.approx(nll / (len(ids) - 1), abs=1e-5)

    flags = (f"--workdir={run}", "--prompt=word3 word4", "--max_tokens=12")
    printed = succeed("generate.py", *flags)
    assert printed.startswith("word3 word4")
    assert len(printed.replace("\n", " <eos> ").split()) == 2 + 12 + 1


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


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (["--vocabulary={folder}/short.txt"], ["60 symbols", "59 symbols"]),
        (["--config="], ["`config` must be given"]),
        (["--config=no.json"], ["no.json"]),
        (
            ["--config={folder}/deeper.json"],
            ["missing: transformer/layer_2/rel_attn/qkv/kernel", "layer_2/ff"],
        ),
        (["--input=no/model.ckpt"], ["no/model.ckpt"]),
        (["--input={folder}/cut.ckpt"], ["cut.ckpt"]),
        (
            ["--input_format=hugging_face"],
            ["`config` can only", "input_format=tf1 or pytorch"],
        ),
        (["--line_end=none"], ["`line_end`", "'none'"]),
        (["--output={folder}/full"], ["`output`", "full"]),
        (["--output="], ["`output`"]),
        (
            ["--output={folder}/text.txt/new"],
            ["`output`", "text.txt", "ot a directory"],
        ),
        (["--input="], ["`prefix`"]),
        (["--unknown=none"], ["`unknown`", "none"]),
        (["--symbols=bytes", "--line_end=x"], ["`line_end`", "symbols=words"]),
        (
            ["--symbols=bytes", "--vocabulary={folder}/digits.txt"],
            ["symbols=bytes", "from 0 to 255", "'٣'"],
        ),
        (["--output_format=hugging_face"], ["`vocabulary`", "words.txt"]),
    ],
)
def test_what_cannot_be_converted_leaves_nothing(
    published, fail, tmp_path, flags, messages
):
    (tmp_path / "short.txt").write_text("\n".join(WORDS[:-1]))
    (tmp_path / "digits.txt").write_text("٣\n7\n")
    config = json.loads((TF1 / "config.json").read_text())
    (tmp_path / "deeper.json").write_text(json.dumps({**config, "n_layer": 3}))
    for part in ("index", "data-00000-of-00001"):
        content = (TF1 / f"model.ckpt.{part}").read_bytes()
        size = len(content) if part == "index" else len(content) // 2
        (tmp_path / f"cut.ckpt.{part}").write_bytes(content[:size])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("dear to me")
    before = sorted(tmp_path.rglob("*"))
    flags = [flag.format(folder=tmp_path) for flag in flags]
    fail(
        "convert.py",
        *published,
        f"--output={tmp_path / 'new'}",
        *flags,
        messages=messages,
    )
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
    model.save_to_preset(tmp_path / "preset")
    output = Workdir(str(tmp_path / "run"))
    flags = ("convert.py", "--input_format=preset", f"--output={output.path}")
    fail(*flags, "--input=quickstart", messages=["`input`", "with weights"])
    succeed(*flags, f"--input={tmp_path / 'preset'}")
    converted, step = output.load_model()
    assert step == 0
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

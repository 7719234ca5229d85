import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from factories import small_model

from txl_keras.data import WordTokenizer
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.models import LSTMBackbone
from txl_keras.training.bundles import save_weights
from txl_keras.workdir import Workdir

CONFIG = {
    "flags": {"seed": 1},
    "model": {},
    "data": {"sizes": (3, 4)},
    "corpus": {"name": "here"},
}


def test_only_a_run_of_the_same_configuration_goes_on(tmp_path):
    workdir = Workdir(str(tmp_path / "run"))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        workdir.read_config()
    # The text may have been moved.
    for config in (CONFIG, CONFIG, {**CONFIG, "corpus": {"name": "there"}}):
        workdir.claim(config)
    other = {**CONFIG, "flags": {"seed": 2}}
    with pytest.raises(ValueError, match="flags.seed was 1, now 2"):
        workdir.claim(other)
    assert workdir.read_config() == {**CONFIG, "data": {"sizes": [3, 4]}}


def test_flags_that_differ_come_first_and_no_hashes(tmp_path):
    workdir = Workdir(str(tmp_path))

    def config(value):
        return {
            "data": {"test": {"sha256": f"{value}"}, "train": {"n": value}},
            "model": {"num_layers": value},
            "flags": {"seed": value},
            "tokenizer": f"{value}",
        }

    workdir.claim(config(1))
    message = (
        "settings: flags.seed was 1, now 2; model.num_layers was 1, now 2; "
        "the text .* others .*data.test, data.train, tokenizer.$"
    )
    with pytest.raises(ValueError, match=message):
        workdir.check_config(config(2))


@pytest.mark.parametrize("content", ["", "{}", '{"flags": '])
def test_a_damaged_configuration_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text('{"flags":{},"model":{},"data":{}}')
    assert Workdir(str(tmp_path)).read_config()["corpus"] == {}
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="config.json is .*damaged"):
        Workdir(str(tmp_path)).claim(CONFIG)


def test_generation_remembers_at_least_a_segment(model, tmp_path):
    workdir = Workdir(str(tmp_path))
    workdir.claim({**CONFIG, "flags": {"segment_length": 6}})
    assert model.backbone.memory_length < 6
    assert workdir.generation_memory_length(model.backbone) == 6
    lstm = LSTMBackbone(vocabulary_size=5, num_layers=1, hidden_dim=4)
    assert workdir.generation_memory_length(lstm) == 1


def test_metrics_after_the_resumed_step_are_forgotten(tmp_path):
    workdir = Workdir(str(tmp_path))
    for step in (10, 20, 30):
        workdir.append_metrics({"step": step})
    with open(workdir.metrics, "a") as file:
        file.write('{"step": 4')  # killed while writing
    workdir.drop_metrics_after(20)
    workdir.append_metrics({"step": 30, "again": True})
    assert workdir.read_metrics() == [
        {"step": 10},
        {"step": 20},
        {"step": 30, "again": True},
    ]


@pytest.mark.parametrize(
    "line, message",
    [
        (b"[1]", "must hold a JSON object"),
        (b"step 3", "damaged"),
        (b"[" * 50_000, "nested too deeply"),
        (b'{"step": 3, "a": [' + b"[]," * 50_000 + b"[]]}", "at most 65,536"),
        (b"\xff", "damaged"),
        (b'{"loss": 1.5}', "`step` must be an integer"),
        (b'{"step": "3"}', "`step` must be an integer. Received: '3'"),
        (b'{"step": 3, "loss": [1.5]}', "`loss` must be a number or null"),
        (b'{"step": 3, "valid": null}', "`valid` must be an object"),
        (b'{"step": 3, "valid": {"nll": NaN}}', "`valid.nll` must be a num"),
    ],
)
def test_a_wrong_line_of_metrics_is_named(tmp_path, line, message):
    workdir = Workdir(str(tmp_path))
    workdir.append_metrics({"step": 2, "loss": None})
    with open(workdir.metrics, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ValueError, match=message) as error:
        workdir.drop_metrics_after(2)
    assert f"Line 2 of {workdir.metrics}" in str(error.value)


@pytest.mark.parametrize(
    "content, message",
    [
        ([1], "must hold a JSON object"),
        ({"step": "../x"}, "`step` must be an integer"),
        ({"step": 3, "valid": {"nll": 1}, "test": 2}, "`test` must be an obj"),
        ({"step": 3, "valid": {"nll": "1"}}, "`valid.nll` must be a number"),
    ],
)
def test_results_of_another_shape_are_named(tmp_path, content, message):
    workdir = Workdir(str(tmp_path))
    workdir.write_results(content)
    with pytest.raises(ValueError, match=f"results.json .*{message}"):
        workdir.read_results()


@pytest.mark.parametrize(
    "name", ["checkpoints", "best", "metrics.jsonl", "results.json"]
)
def test_a_run_that_lost_its_configuration_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    workdir = Workdir(str(tmp_path))
    message = f"has {name} of a run, but no config.json.*another --workdir"
    with pytest.raises(ValueError, match=message):
        workdir.claim(CONFIG)
    assert not workdir.is_claimed()


@pytest.fixture(scope="module")
def model():
    return small_model(
        vocabulary_size=4, num_layers=1, hidden_dim=4, memory_length=0
    )


def tokenizer_of(num_words):
    words = [f"word{i}" for i in range(num_words - 1)]
    return WordTokenizer(["<eos>", *words])


def test_a_run_of_foreign_weights_is_read_as_one_of_ours(model, tmp_path):
    workdir = Workdir(str(tmp_path / "new"))
    config = {"source": {"format": "there"}, "flags": {"segment_length": 3}}
    config["tokenizer"] = "the hash of another vocabulary"
    workdir.create(model, 70, config, tokenizer_of(4))

    loaded, step = workdir.load_model(memory_length=2)
    assert step == 70
    assert loaded.backbone.memory_length == 2
    for a, b in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert workdir.load_tokenizer().vocabulary_size == 4
    assert workdir.generation_memory_length(loaded.backbone) == 3
    read = workdir.read_config()
    assert read["source"] == {"format": "there"}
    assert read["corpus"] == {}


def test_a_tokenizer_that_was_changed_is_refused(model, tmp_path):
    workdir = Workdir(str(tmp_path))
    config = {"tokenizer": tokenizer_hash(tokenizer_of(4))}
    workdir.create(model, 0, config, tokenizer_of(4))
    assert workdir.load_tokenizer().vocabulary_size == 4
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("word1", "word9"))
    with pytest.raises(ValueError, match="tokenizer.json is not that of the"):
        workdir.load_tokenizer()


def test_a_sample_is_read_from_a_file_only(tmp_path):
    workdir = Workdir(str(tmp_path))
    workdir.write_sample("naïve\n")
    assert workdir.read_sample() == "naïve\n"
    (tmp_path / "sample.txt").unlink()
    (tmp_path / "sample.txt").symlink_to("/dev/zero")  # has no end
    with pytest.raises(ValueError, match="sample.txt must be a file.*device"):
        workdir.read_sample()


def test_a_tokenizer_that_was_removed_is_written_again(tmp_path):
    workdir = Workdir(str(tmp_path))
    tokenizer = tokenizer_of(4)
    config = {**CONFIG, "tokenizer": tokenizer_hash(tokenizer)}
    workdir.claim(config, tokenizer)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match="writes it again"):
        workdir.load_tokenizer()
    other = {**CONFIG, "tokenizer": tokenizer_hash(tokenizer_of(5))}
    with pytest.raises(ValueError, match="tokens .*tokenizer"):
        workdir.claim(other, tokenizer_of(5))
    assert not (tmp_path / "tokenizer.json").exists()

    workdir.claim(config, tokenizer)
    assert workdir.load_tokenizer().vocabulary_size == 4
    # One that was changed is neither taken nor written over.
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is damaged"):
        workdir.claim(config, tokenizer)


@pytest.mark.parametrize(
    "change,name",
    [
        ({"num_classes": 2}, "TransformerXLTextClassifier"),
        ({"backbone": {"class_name": "XLNetBackbone"}}, "XLNetPermutationLM"),
    ],
)
def test_a_run_of_another_model_is_named(model, tmp_path, change, name):
    workdir = Workdir(str(tmp_path))
    content = {"corpus": None, "flags": {}, "data": {}}
    workdir.claim({**content, "model": {**model.get_config(), **change}})
    for read in (
        workdir.load_model,
        workdir.read_model_config,
        workdir.check_model_class,
    ):
        with pytest.raises(
            ValueError, match=f"TransformerXLCausalLM.* {tmp_path}, .* {name}"
        ):
            read()


def test_the_lock_of_a_stranger_leads_to_no_other_file(tmp_path):
    other = tmp_path / "mine.txt"
    other.write_text("kept")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "lock").symlink_to(other)
    Workdir(str(folder)).claim(CONFIG)
    assert other.read_text() == "kept"


def test_only_a_new_folder_is_written_to(model, tmp_path):
    workdir = Workdir(str(tmp_path))
    workdir.claim(CONFIG)
    with pytest.raises(FileExistsError, match=f"must be a new.*{tmp_path}"):
        workdir.create(model, 3, {})
    path = str(tmp_path / "config.json" / "run")
    with pytest.raises(OSError, match=f"`workdir` must be.*={path} "):
        Workdir(path).check_writable()
    with pytest.raises(ValueError, match="4 symbols. Received: 5 symbols"):
        Workdir(f"{tmp_path}/new").create(model, 0, {}, tokenizer_of(5))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "lock"}
    assert workdir.read_config()["flags"] == {"seed": 1}


def test_a_bucket_is_a_folder_as_any_other(model):
    # TensorFlow's file system in memory stands in for a bucket.
    workdir = Workdir("ram://bucket/run")
    workdir.claim(CONFIG)
    for step in (10, 20):
        workdir.append_metrics({"step": step})
    workdir.drop_metrics_after(10)
    assert workdir.read_metrics() == [{"step": 10}]
    assert Workdir("ram://bucket/run").read_config()["flags"] == {"seed": 1}
    Workdir("ram://bucket/other").create(model, 3, {})
    assert Workdir("ram://bucket/other").load_model()[1] == 3


def test_two_processes_do_not_train_in_the_same_folder(tmp_path):
    # The others only lock the file: importing `Workdir` takes seconds.
    script = """
import sys
from txl_keras.file_lock import lock
file = open(sys.argv[1] + "/lock", "w")
try:
    lock(file, wait=False)
except BlockingIOError:
    print("in use", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""

    def start_other():
        return subprocess.Popen(
            [sys.executable, "-c", script, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start_other() as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(OSError, match=f"{tmp_path} is in use"):
            Workdir(str(tmp_path)).claim(CONFIG)
        process.stdin.close()
    claimed = Workdir(str(tmp_path))
    claimed.claim(CONFIG)
    with start_other() as process:
        assert process.stdout.readline() == "in use\n"
    assert claimed.is_claimed()


def test_the_best_weights_are_those_saved_as_such(model, tmp_path):
    workdir = Workdir(str(tmp_path / "new"))
    workdir.create(model, 5, {})
    with pytest.raises(FileNotFoundError, match="--vocabulary"):
        workdir.load_tokenizer()
    # What was not trained here has no best.
    assert workdir.load_model("best")[1] == 5
    start = model.get_weights()
    model.set_weights([2 * weight for weight in start])
    save_weights(model, workdir.best, 3)
    best, step = workdir.load_model("best")
    assert step == 3
    np.testing.assert_array_equal(best.get_weights()[0], 2 * start[0])
    latest, step = workdir.load_model()
    assert step == 5
    np.testing.assert_array_equal(latest.get_weights()[0], start[0])


def test_damaged_best_weights_give_way_to_the_newest(model, tmp_path, caplog):
    workdir = Workdir(str(tmp_path / "new"))
    workdir.create(model, 5, {})
    save_weights(model, workdir.best, 3)
    (tmp_path / "new/best/ckpt-3.data-00000-of-00001").write_bytes(b"")
    assert workdir.load_model("best")[1] == 5
    assert "best/ckpt-3 is damaged" in caplog.text

    save_weights(model, workdir.best, 3)

    def put_nan(state):
        state["weights/softmax/bias_0"][-1] = np.nan

    rewrite(f"{workdir.best}/ckpt-3", put_nan)
    assert workdir.load_model("best")[1] == 5
    assert "weights/softmax/bias_0 is not finite" in caplog.text


def rewrite(path, change, slices=()):
    """Writes a checkpoint again, its tensors by name changed."""
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()
    state = {name: reader.get_tensor(name) for name in names}
    change(state)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(state),
        shape_and_slices=[dict(slices).get(name, "") for name in state],
        tensors=list(state.values()),
    )


def test_checkpoints_of_another_run_are_refused(model, tmp_path):
    # Of the same shapes: nothing else would tell them apart.
    runs = [Workdir(str(tmp_path / name)) for name in "ab"]
    for seed, workdir in enumerate(runs):
        config = {**CONFIG, "flags": {"seed": seed}}
        workdir.claim({**config, "model": model.get_config()})
        save_weights(model, workdir.checkpoints, 7)
        save_weights(model, workdir.best, 4)
        run = {"run": np.int64(workdir.run_hash())}
        rewrite(f"{workdir.best}/ckpt-4", lambda state, r=run: state.update(r))
    # Where the text lies is no matter.
    moved = Workdir(str(tmp_path / "moved"))
    config = runs[0].read_config()
    moved.claim({**config, "corpus": {"corpus": "elsewhere"}})
    assert moved.run_hash() == runs[0].run_hash() != runs[1].run_hash()

    assert runs[0].load_model("best")[1] == 4
    (tmp_path / "b" / "best").rename(tmp_path / "b" / "old")
    (tmp_path / "a" / "best").rename(tmp_path / "b" / "best")
    with pytest.raises(ValueError, match="b/best/ckpt-4 is of another run"):
        runs[1].load_model("best")
    # Earlier versions saved nothing to tell by.
    assert runs[1].load_model()[1] == 7


def test_weights_that_claim_more_than_their_file_holds(model, tmp_path):
    """An index may name a tensor of any size, of which a slice is there."""
    workdir = Workdir(str(tmp_path / "run"))
    workdir.create(model, 3, {})
    path = f"{workdir.checkpoints}/ckpt-3"
    table = "weights/token_embedding/embeddings_0"
    rewrite(path, lambda state: None, {table: "2000000000 4 0,4:0,4"})
    config = workdir.read_config()
    config["model"]["backbone"]["config"]["vocabulary_size"] = 2 * 10**9
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="ckpt-3 is damaged.*32,000,00"):
        workdir.load_model()

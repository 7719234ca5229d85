import json

import numpy as np
import pytest
from factories import assert_same
from factories import change_json
from factories import save_run
from factories import small_model
from script_runs import LOCK
from script_runs import locked_elsewhere
from script_runs import run_code

from txl_keras.data import WordTokenizer
from txl_keras.data.corpora.files import check_can_write
from txl_keras.data.preparation import tokenizer_hash
from txl_keras.models import LSTMBackbone
from txl_keras.training.checkpointing import copies
from txl_keras.weights import weights_by_name
from txl_keras.workdir import Workdir

CONFIG = {
    "class_name": "TransformerXLCausalLM",
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
    found = {**CONFIG, "data": {"sizes": [3, 4]}, "tokenizer": None}
    assert workdir.read_config() == found


def test_flags_that_differ_come_first_and_no_hashes(tmp_path):
    workdir = Workdir(str(tmp_path))

    def config(value):
        return {
            **CONFIG,
            "data": {"test": {"sha256": f"{value}"}, "train": {"n": value}},
            "model": {"num_layers": value},
            "flags": {"seed": value},
            "tokenizer": f"{value}",
        }

    workdir.claim(config(1))
    message = (
        "settings: flags.seed was 1, now 2; model.num_layers was 1, now 2; "
        r"another text or tokens \(data.test, data.train, tokenizer\)$"
    )
    with pytest.raises(ValueError, match=message):
        workdir.check_config(config(2))


@pytest.mark.parametrize("content", ["", "{}", '{"training": '])
def test_a_damaged_configuration_is_named(tmp_path, content):
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


def test_a_step_of_best_weights_that_names_a_folder_is_refused(tmp_path):
    run = save_run(tmp_path / "run", small_model(num_layers=1), 3)
    config = tmp_path / "run" / "model" / "config.json"
    change_json(config, {"training.step": "../../mine"})
    for read in (run.best_step, run.load_model):
        with pytest.raises(ValueError, match="`step` must be an integer"):
            read()


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
        (b"\xff", "damaged"),
        (b'{"loss": 1.5}', "`step` must be an integer"),
        (b'{"step": "3"}', "`step` must be an integer. Received: '3'"),
        (b'{"step": 3, "valid": {"nll": "a"}}', "`valid.nll` must be a numb"),
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


@pytest.fixture(scope="module")
def model():
    return small_model(
        vocabulary_size=4, num_layers=1, hidden_dim=4, memory_length=0
    )


def tokenizer_of(num_words):
    words = [f"word{i}" for i in range(num_words - 1)]
    return WordTokenizer(["<eos>", *words])


def test_a_model_by_itself_is_read_as_a_run(model, tmp_path):
    model.save_to_preset(tmp_path, {"step": 70, "segment_length": 3})
    workdir = Workdir(str(tmp_path))
    loaded, step = workdir.load_model(memory_length=2)
    assert step == 70
    assert loaded.backbone.memory_length == 2
    assert_same(loaded.weights, model.weights)
    assert workdir.generation_memory_length(loaded.backbone) == 3
    assert workdir.read_config()["corpus"] == {}
    with pytest.raises(FileNotFoundError, match="--vocabulary"):
        workdir.load_tokenizer()
    for training in ({"segment_length": "3"}, {"run": 5}):
        model.save_to_preset(tmp_path, training)
        with pytest.raises(ValueError, match="config.json is damaged"):
            workdir.read_config()


def test_a_tokenizer_that_was_changed_is_refused(model, tmp_path):
    workdir = save_run(tmp_path, model, 0, tokenizer_of(4))
    assert workdir.load_tokenizer().vocabulary_size == 4
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("word1", "word9"))
    with pytest.raises(ValueError, match="tokenizer.json is not the tokenizer"):
        workdir.load_tokenizer()


def test_results_are_a_list_of_objects(tmp_path):
    workdir = Workdir(str(tmp_path))
    assert workdir.read_evaluations("test") == []
    path = tmp_path / "evaluation_test.json"
    results = [{"nll": 1.5, "num_tokens": 7}]
    path.write_text(json.dumps(results))
    assert workdir.read_evaluations("test") == results
    for damaged in ("[5]", '[{"nll": 1.5}]'):
        path.write_text(damaged)
        with pytest.raises(ValueError, match="evaluation_test.json is damaged"):
            workdir.read_evaluations("test")
    (tmp_path / "results.json").write_text('{"step": 3, "valid": {"nll": 1}}')
    with pytest.raises(ValueError, match="`test.nll` must be a number"):
        workdir.read_results()


def test_a_sample_is_read_from_a_file_only(tmp_path):
    workdir = Workdir(str(tmp_path))
    (tmp_path / "sample.txt").write_text("naïve\n", "utf-8")
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
    with pytest.raises(ValueError, match="or tokens .tokenizer"):
        workdir.claim(other, tokenizer_of(5))
    assert not (tmp_path / "tokenizer.json").exists()

    workdir.claim(config, tokenizer)
    assert workdir.load_tokenizer().vocabulary_size == 4
    # One that was changed is neither taken nor written over.
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is damaged"):
        workdir.claim(config, tokenizer)


def test_the_lock_of_a_stranger_leads_to_no_other_file(tmp_path):
    other = tmp_path / "mine.txt"
    other.write_text("kept")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "lock").symlink_to(other)
    Workdir(str(folder)).claim(CONFIG)
    assert other.read_text() == "kept"


def test_a_bucket_is_a_folder_as_any_other(model):
    # TensorFlow's file system in memory stands in for a bucket.
    workdir = Workdir("ram://bucket/run")
    workdir.claim(CONFIG)
    for step in (10, 20):
        workdir.append_metrics({"step": step})
    workdir.drop_metrics_after(10)
    assert workdir.read_metrics() == [{"step": 10}]
    assert Workdir("ram://bucket/run").read_config()["flags"] == {"seed": 1}
    tokenizer = tokenizer_of(4)
    save_run("ram://bucket/other", model, 3, tokenizer, best=(model, 2))
    other = Workdir("ram://bucket/other")
    loaded, step = other.load_model()
    assert step == 2 and loaded.tokenizer.vocabulary_size == 4


def test_two_processes_do_not_train_in_the_same_folder(tmp_path):
    # The others only lock the file: importing `Workdir` takes seconds.
    workdir = Workdir(str(tmp_path))
    with (
        locked_elsewhere(tmp_path / "lock"),
        pytest.raises(OSError, match=f"{tmp_path} is in use"),
    ):
        workdir.claim(CONFIG)
    workdir.claim(CONFIG)
    assert "BlockingIOError" in run_code(LOCK, tmp_path / "lock").stderr
    assert workdir.is_claimed()


def test_the_best_weights_are_those_saved_as_such(model, tmp_path):
    workdir = save_run(tmp_path / "new", model, 5)
    start = model.get_weights()
    weights = copies(weights_by_name(model))
    workdir.save_best({n: 2 * weight for n, weight in weights.items()}, 3)
    best, step = workdir.load_model()
    assert step == workdir.best_step() == 3
    np.testing.assert_array_equal(best.get_weights()[0], 2 * start[0])

    name = next(iter(weights))
    weights[name][:] = np.nan
    with pytest.raises(FloatingPointError, match=f"{name} is not finite"):
        workdir.save_best(weights, 4)
    assert workdir.load_model()[1] == 3
    (tmp_path / "new/model").rename(tmp_path / "elsewhere")
    (tmp_path / "new/model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="new/model, a link to"):
        workdir.load_model()
    (tmp_path / "new/model").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "new/model")
    (tmp_path / "new/model/model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="new/model.*damaged"):
        workdir.load_model()


def test_a_run_is_known_by_its_flags_and_not_where_its_text_is(model, tmp_path):
    runs = [
        save_run(tmp_path / name, model, 7, best=(model, 4), flags=flags)
        for name, flags in {"a": {"seed": 0}, "b": {"seed": 1}}.items()
    ]
    moved = Workdir(str(tmp_path / "moved"))
    config = runs[0].read_config()
    moved.claim({**config, "corpus": {"corpus": "elsewhere"}})
    assert moved.run_hash() == runs[0].run_hash() != runs[1].run_hash()


@pytest.mark.parametrize(
    "field, value, kinds",
    [
        ("training.run.data", "x", "an object"),
        ("training.run.corpus", 5, "an object or null"),
        ("training.segment_length", "8", "an integer or null"),
        ("training.segment_length", 10**12, "from 0 to 1,048,576"),
    ],
)
def test_a_wrong_field_is_named(field, value, kinds, tmp_path):
    workdir = Workdir(str(tmp_path))
    workdir.claim(CONFIG)
    change_json(tmp_path / "config.json", {field: value})
    with pytest.raises(ValueError, match=f"`{field}` must be {kinds}"):
        workdir.read_config()


def test_only_a_folder_is_written_to(tmp_path):
    Workdir(str(tmp_path)).claim(CONFIG)
    path = str(tmp_path / "config.json" / "run")
    with pytest.raises(OSError, match=f"`workdir` must be.*={path} "):
        check_can_write("workdir", path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "lock"}

"""Runs train/plot.py."""

import json
import shutil

import numpy as np
import pytest
from script_runs import metrics_of
from script_runs import results_of

from txl_keras.data import load_corpus
from txl_keras.evaluation.backup import Backup
from txl_keras.workdir import Workdir


def picture_numbers(path):
    assert path.read_bytes()[:4] == b"\x89PNG"
    return json.loads(path.with_suffix(".json").read_text())


def test_learning_curves_are_those_of_the_metrics(run, succeed, tmp_path):
    workdir = shutil.copytree(run[0], tmp_path / "run")
    step = Workdir(str(workdir)).best_step()
    results = [
        {"nll": nll, "num_tokens": size, "step": at, "corpus": corpus}
        for nll, size, at, corpus in (
            (1.25, 70_000, step, None),
            (1.5, 90_000, step, None),
            (1.75, 90_000, step, None),
            (1.0, 20, step, None),
            (2.5, 95_000, step - 1, None),
            (2.75, 99_000, step, "other.txt"),
        )
    ]
    evaluations = workdir / "evaluation_test.json"
    evaluations.write_text(json.dumps(results))
    output = tmp_path / "curves.png"
    flags = ("--picture=learning_curves", f"--output={output}")
    succeed("plot.py", *flags, f"--workdirs={workdir}", "--labels=one")
    numbers = picture_numbers(output)
    assert numbers["unit"] == "byte"
    (model,) = numbers["models"]
    assert (model["label"], model["tokens_per_step"]) == ("one", 4 * 8)
    # The test score is the latest of most tokens, of the best weights and the
    # text of the run.
    assert model["test"] == {"nll": 1.75, "num_tokens": 90_000}
    metrics = metrics_of(workdir)
    train = {m["step"]: m["loss"] for m in metrics if "loss" in m}
    valid = {m["step"]: m["valid"]["nll"] for m in metrics if "valid" in m}
    for name, losses in (("train", train), ("valid", valid)):
        curve = {"steps": [*losses], "nll": [*losses.values()]}
        assert model[name] == curve
    # Training scored more than this.
    evaluations.write_text(json.dumps(results[3:4]))
    succeed("plot.py", *flags, f"--workdirs={workdir}")
    (model,) = picture_numbers(output)["models"]
    assert model["test"]["nll"] == results_of(workdir)["test"]["nll"]


def test_runs_of_one_label_are_seeds(succeed, fail, tmp_path):
    def write(name, valid, test, unit="character", **score):
        model = {
            "label": "LSTM",
            "workdir": f"runs/{name}",
            "tokens_per_step": 12,
            "train": {"steps": [5], "nll": [2.0]},
            "valid": {"steps": [5, 7], "nll": [3.0, np.log(2) * valid]},
            "test": {"nll": np.log(2) * test, **score},
        }
        numbers = {"picture": "learning_curves", "unit": unit}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(numbers | {"models": [model]}))
        return str(path)

    files = [write("a", 2.5, 2.0), write("b", 2.6, 1.9), write("c", 2.7, 2.1)]
    output = tmp_path / "seeds.svg"
    flags = ("plot.py", "--picture=learning_curves", f"--output={output}")
    printed = succeed(*flags, f"--numbers={','.join(files)}")
    row = next(x for x in printed.splitlines() if x.startswith("LSTM"))
    assert row.split() == [
        "LSTM", "3", "2.600", "±", "0.100", "2.000", "±", "0.100",
    ]  # fmt: skip
    svg = output.read_text("utf-8")
    assert svg.count("<!-- LSTM, valid -->") == 1
    longer = write("longer", 2.6, 1.8, memory_length=9)
    assert "different num_tokens, segment_length, memory" in succeed(
        *flags, f"--numbers={files[0]},{longer}"
    )
    # Runs of two machines may have the same path.
    copy = shutil.copy(files[0], tmp_path / "copy.json")
    succeed(*flags, f"--numbers={files[0]},{copy}")
    words = write("words", 3.0, 3.0, "word")
    fail(
        *flags, f"--numbers={files[0]},{words}",
        messages=["one unit", "of character", "of word"],
    )  # fmt: skip
    fail(
        "plot.py", "--picture=recl", f"--output={output}",
        f"--numbers={files[0]},{files[1]}", messages=["one file"],
    )  # fmt: skip


def test_losses_by_position_are_those_of_reading(
    group, corpus, succeed, tmp_path
):
    memory = group[0]
    output = tmp_path / "picture.png"
    flags = (
        "plot.py",
        f"--workdirs={memory}",
        f"--corpus={corpus}",
        f"--output={output}",
        "--max_eval_tokens=16",
        "--batch_size=1",
    )
    succeed(*flags, "--picture=positions")
    numbers = picture_numbers(output)
    assert numbers["corpus"] == str(corpus)
    (of_model,) = numbers["models"]
    assert (of_model["label"], of_model["step"]) == ("memory", 3)
    ids = np.array(list(load_corpus(str(corpus)).read("test")[:16]))[None]
    model, _ = Workdir(str(memory)).load_model()
    state, nll = model.initial_memory(1), []
    for t in range(0, 15, 5):
        inputs, targets = ids[:, t : t + 5], ids[:, t + 1 : t + 6]
        of_segment, state = model.score(inputs, targets, state)
        nll.append(of_segment[0].numpy())
    found = [bucket["nll"] for bucket in of_model["positions"]]
    np.testing.assert_allclose(found, np.mean(nll, axis=0), atol=1e-5)


def test_context_lengths_of_a_group_are_measured(
    group, corpus, here, succeed, fail, monkeypatch, tmp_path
):
    output, again = tmp_path / "new" / "recl.png", tmp_path / "again.svg"
    flags = (
        "plot.py", "--picture=recl", f"--workdirs={group[0]},{group[1]}",
        "--labels=far,near", f"--corpus={corpus}", "--num_positions=11",
        "--context_lengths=4,8,12", "--top_r=0.25,1", f"--output={output}",
    )  # fmt: skip
    saved = []

    def save(backup, state, save=Backup.save):
        saved.append(save(backup, state))
        if len(saved) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Backup, "save", save)
    assert here(*flags)[1] == 130
    messages = [str(tmp_path / "new" / "recl_state"), "remove the file"]
    fail(*flags, "--num_positions=8", messages=messages)
    printed = succeed(*flags)
    # Nothing was measured twice, and what was saved on the way is gone.
    assert len(saved) == 6
    numbers = picture_numbers(output)
    assert len([*output.parent.iterdir()]) == 2
    first, second = numbers["models"]
    assert (first["segment_length"], first["memory_length"]) == (5, 7)
    assert (second["workdir"], second["step"]) == (str(group[1]), 3)
    # Without memory the last segment is all it sees.
    assert second["nll"] == pytest.approx([second["nll"][0]] * 3, abs=1e-5)
    assert np.abs(np.diff(first["nll"])).min() > 1e-6
    for model in numbers["models"]:
        assert [r["top_r"] for r in model["recl"]] == [0.25, 1]
        assert all(len(r["gains"]) == 2 for r in model["recl"])
    # Weights are random: no context helps.
    assert [line.split() for line in printed.splitlines()[1:4]] == [
        ["model", "r", "=", "0.25", "r", "=", "1"],
        ["far", "<=", "4", "<=", "4"],
        ["near", "<=", "4", "<=", "4"],
    ]
    flags = f"--numbers={output.with_suffix('.json')}", f"--output={again}"
    succeed("plot.py", "--picture=context_losses", *flags)
    for text in ("far", "near", "bits per byte", "12"):
        assert f"<!-- {text} -->" in again.read_text("utf-8")


@pytest.mark.large
def test_attention_of_a_run_is_drawn_with_its_words(
    words_run, succeed, tmp_path
):
    picture = tmp_path / "attention.svg"
    flags = ("plot.py", f"--workdirs={words_run[0]}")
    succeed(
        *flags,
        "--picture=attention",
        f"--output={picture}",
        "--segment_length=3",
        "--memory_length=5",
        "--heads=1",
    )
    tokenizer = Workdir(str(words_run[0])).load_tokenizer()
    path = Workdir(str(words_run[0])).read_config()["corpus"]
    tokens = tokenizer.encode(load_corpus(path["corpus"]).read("test"))
    drawn = picture.read_text("utf-8")
    middle = len(tokens) // 2
    for token in tokens[middle - 5 : middle + 3]:
        word = tokenizer.decode([token]).replace("\n", "↵")
        assert f"<!-- {word} -->" in drawn


def test_pictures_that_cannot_be_drawn_are_refused_before_any_work(
    group, corpus, refuse, tmp_path
):
    memory, none, other = group
    output = tmp_path / "picture.png"
    text = f"--corpus={corpus}"
    one, two = f"--workdirs={memory}", f"--workdirs={memory},{none}"
    positions = tmp_path / "numbers.json"
    positions.write_text('{"picture": "positions"}')
    numbers = f"--numbers={positions}"
    run_config = memory / "config.png"
    curves = tmp_path / "curves.json"
    curves.write_text(
        '{"picture": "learning_curves", "unit": "byte",'
        ' "models": [{"label": "a"}]}'
    )
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"picture": "positions", "unit": "byte"}')
    for picture, cases in {
        "attention": (
            ([one, text, "--layers=1"], ["`layers`", "--layers=1"]),
            ([two, text, "--heads=0,2"], ["`heads`", "from 0 to 1"]),
            ([one, text, "--heads=x"], ["`heads` must be numbers", "=x"]),
            ([one, text, "--heads="], ["`heads` must be numbers"]),
            (
                [one, text, "--segment_length=9999"],
                ["`segment_length` and", "9999", "tokens"],
            ),
        ),
        "context_losses": (
            ([one, text, "--context_lengths=9,9999"], ["`context_lengths`"]),
            ([one, text, "--num_positions=99999"], ["`num_positions` must"]),
        ),
        "learning_curves": (
            ([one], ["were trained", str(memory)]),
            ([one, "--split=valid"], ["`split` can only be given with --pict"]),
            ([f"--numbers={curves}"], ["that `txl plot --picture=learning_c"]),
        ),
        "positions": (
            ([], ["Either `workdirs`, one or more runs, or `numbers`"]),
            ([numbers, one], ["Either `workdirs`"]),
            ([numbers, "--labels=a"], ["`labels` must not be given"]),
            ([one, text, f"--output={run_config}"], ["replace", "config.json"]),
            ([numbers, "--batch_size=2"], ["`batch_size` must be left out"]),
            ([one, text, "--layers=0"], ["`layers` can only be given with"]),
            ([numbers], ["`unit` must be a string"]),
            ([f"--numbers={damaged}"], ["`models` must be a list"]),
            ([two], ["`corpus` must be given"]),
            ([one, "--corpus="], ["`corpus` must not be empty"]),
            ([f"{one},{other}", text], ["one tokenizer", str(other)]),
            ([two, "--labels=a"], ["`labels`", "2", "--labels=a"]),
            ([two, text, "--labels=a,a"], ["`labels` must differ"]),
            ([one, text, "--output=a.gif"], [".png or .svg or .pdf"]),
        ),
        "recl": (
            ([one], ["`workdirs` must be two"]),
            ([two, "--top_r=2"], ["`top_r`", "2.0"]),
            ([two, "--top_r=x"], ["`top_r` must be numbers", "=x"]),
            ([two, "--context_lengths=1,2,4"], ["`context_lengths`"]),
            ([numbers], ["picture of recl", "positions"]),
        ),
    }.items():
        flags = f"--picture={picture}", f"--output={output}"
        refuse("plot.py", cases, *flags)
    assert not output.exists()
    assert Workdir(str(memory)).read_config()["flags"] == {"segment_length": 5}

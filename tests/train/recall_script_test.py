"""Runs train/recall.py."""

import json


def test_models_are_added_to_a_file_and_drawn(succeed, fail, tmp_path):
    output = tmp_path / "new" / "recall.json"
    flags = (
        f"--output={output}",
        "--max_steps=2",
        "--max_eval_tokens=20000",
    )
    succeed("recall.py", *flags, "--models=no_recurrence")
    first = json.loads(output.read_text())
    (model,) = first["models"]
    assert model["label"] == "no recurrence"
    assert model["start"][:2] == [1, 16]
    assert 0.7 < model["attended"][0] < 1
    assert model["attended"][2:] == [0] * 22  # beyond a segment of 32
    # No model is trained again, and an unknown name is known before any work.
    output.write_text(json.dumps(first))
    succeed("recall.py", *flags, "--models=no_recurrence")
    assert json.loads(output.read_text()) == first
    assert output.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    for damaged in (
        {name: value for name, value in first.items() if name != "models"},
        {**first, "models": [{**model, "label": None}]},
    ):
        output.write_text(json.dumps(damaged))
        fail("recall.py", *flags, messages=[str(output), "damaged"])
    output.write_text(json.dumps(first))
    for others, message in (
        (["--models=gru"], "`models` must be names among transformer_xl"),
        (["--max_steps=3"], "`output` must be a new file"),
        (["--max_eval_tokens=1100"], "`max_eval_tokens` must be more"),
        (["--max_eval_tokens=12288"], "`max_eval_tokens` must be more"),
    ):
        fail("recall.py", *flags, *others, messages=[message])

    # Drawn once more, by another name.
    picture = tmp_path / "again.svg"
    succeed(
        "plot.py",
        "--picture=recall",
        f"--numbers={output}",
        "--labels=none",
        f"--output={picture}",
    )
    for text in ("none", "chance", "direct attention", "right answers"):
        assert f"<!-- {text} -->" in picture.read_text("utf-8")

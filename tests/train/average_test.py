"""Runs train/average.py."""

import json

import numpy as np
from script_runs import evaluation_of
from script_runs import results_of

from txl_keras.models import TransformerXLCausalLM
from txl_keras.workdir import Workdir


def test_the_average_of_a_run_is_a_preset(run, succeed, fail, tmp_path):
    workdir, output = run[0], tmp_path / "average"
    flags = ("average.py", f"--workdir={workdir}", f"--output={output}")
    printed = succeed(*flags)
    assert "[40, 60]" in printed

    model, step = Workdir(str(output)).load_model()
    latest, _ = Workdir(str(workdir)).load_model()
    assert step == 60
    for weight, newest in zip(
        model.get_weights(), latest.get_weights(), strict=True
    ):
        assert np.abs(weight - newest).max() > 1e-5

    assert TransformerXLCausalLM.from_preset(output).tokenizer is not None
    config = json.loads((output / "config.json").read_text())
    assert config["training"]["averaged_steps"] == [40, 60]
    succeed("evaluate.py", f"--workdir={output}", "--batch_size=3")
    trained = results_of(workdir)["test"]
    averaged = evaluation_of(output)
    assert averaged["num_tokens"] == trained["num_tokens"]
    assert 1e-4 < abs(averaged["nll"] - trained["nll"]) < 0.5

    before = (output / "config.json").read_bytes()
    error = fail(*flags)
    assert "`output` must be a new or empty folder" in error
    assert str(output) in error
    assert (output / "config.json").read_bytes() == before

"""The trained models that come with the package, and what their cards claim."""

import json
import pathlib
import re
import shlex
import sys

import pytest

from txl_keras.models import TransformerXLCausalLM
from txl_keras.models.presets import PRESETS
from txl_keras.models.presets import TRAINED

ROOT = pathlib.Path(__file__).parents[2]
TEMPLATE = ROOT / "txl_keras" / "trained" / "README.md"
DATA = ROOT.parent / "shared" / "data"
# A command in a card, and what it prints.
CLAIM = re.compile(r"```shell\n(txl evaluate .*?)```\n+```text\n(.*?)```", re.S)
BITS = re.compile(r"([0-9.]+) bits per byte")

each_model = pytest.mark.parametrize("name", TRAINED)


def card_of(name):
    return pathlib.Path(TRAINED[name], "README.md").read_text("utf-8")


def headings(text):
    return re.findall(r"^## .*", text, re.MULTILINE)


def test_the_models_are_small_and_have_names_of_their_own():
    assert not TRAINED.keys() & PRESETS.keys()
    files = [
        p for folder in TRAINED.values() for p in pathlib.Path(folder).iterdir()
    ]
    assert sum(path.stat().st_size for path in files) <= 4_000_000
    assert {path.name for path in files} <= {
        "README.md", "config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip


def test_a_trained_model_writes_text():
    assert TransformerXLCausalLM.trained_presets == TRAINED
    for folder in TRAINED.values():
        config = json.loads(pathlib.Path(folder, "config.json").read_text())
        dtype = config["config"]["backbone"]["config"]["dtype"]["config"]
        assert dtype["name"] == "float32"  # fast on any processor
    for name in TRAINED.keys() - {"python_stdlib_small"}:  # in docs_test.py
        model = TransformerXLCausalLM.from_preset(name)
        text = model.generate("import ", max_new_tokens=20, seed=1)
        assert text.startswith("import ") and len(text) > 20


@each_model
def test_a_card_says_all_that_the_template_asks_for(name):
    card, template = card_of(name), TEMPLATE.read_text("utf-8")
    (template,) = re.findall(r"````markdown\n(.*?)````", template, re.S)
    assert headings(card) == headings(template) != []
    assert not re.search(r"\b(NAME|CORPUS)\b", card)
    assert f"txl train --flagfile=trained/{name}\n" in card
    assert (ROOT / f"train/configs/trained/{name}.flags").exists()
    claims = CLAIM.findall(card)
    assert claims
    for command, printed in claims:
        assert f"--preset={name} " in command
        assert BITS.search(printed)


# A minute per model.
@pytest.mark.large
@each_model
def test_a_card_claims_the_score_that_its_command_prints(name, succeed):
    card = card_of(name)
    version = "Python {}.{}".format(*sys.version_info)
    for command, printed in CLAIM.findall(card):
        arguments = shlex.split(command.replace("\\\n", " "))[2:]
        if "--corpus=python_stdlib" in arguments and version not in card:
            pytest.skip(f"the text is not that of {version}")
        if "--corpus=enwik8" in arguments:
            if not (DATA / "enwik8.gz").exists():
                pytest.skip("needs enwik8 in shared/data")
            arguments.append(f"--manual_dir={DATA}")
        scored = succeed("evaluate.py", *arguments)
        expected, received = (
            float(BITS.search(text)[1]) for text in (printed, scored)
        )
        # A later release of the same Python has other files.
        assert received == pytest.approx(expected, rel=0.01)

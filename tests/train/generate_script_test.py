"""Runs train/generate.py."""

from factories import save_run

from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM


def test_generate_writes_after_a_prompt_and_repeats_by_seed(run, succeed, here):
    flags = (f"--workdir={run[0]}", "--prompt=Sentence é", "--max_tokens=60")
    sampled = ("generate.py", *flags, "--seed=1", "--top_p=0.9")
    first = succeed(*sampled)
    assert first.startswith("Sentence é")
    assert len(first.encode()) > 60
    assert succeed(*sampled) == first
    greedy = succeed("generate.py", *flags, "--temperature=0")
    assert greedy != first
    # What Python makes of a byte that is not UTF-8.
    printed, error = here("generate.py", flags[0], "--prompt=a\udcff")
    assert "UTF-8" in error and printed == ""
    printed, error = here("generate.py", *flags, "--seed=2147483647")
    assert "seed=2147483647" in error and printed == ""


def test_a_preset_writes_what_its_run_writes(run, here, tmp_path):
    TransformerXLCausalLM.from_preset(run[0]).save_to_preset(tmp_path)
    flags = ("--prompt=Sentence é", "--max_tokens=9", "--memory_length=7")
    text, _ = here("generate.py", f"--workdir={run[0]}", *flags)
    assert text.startswith("Sentence é")
    preset = f"--preset={tmp_path}"
    assert here("generate.py", preset, *flags) == (text, None)
    for wrong in ([], [preset, "--workdir=a"]):
        printed, error = here("generate.py", *wrong)
        assert " must be " in error and printed == ""
    model = TransformerXLCausalLM.from_preset(tmp_path, tokenizer=None)
    model.save_to_preset(tmp_path)
    _, error = here("generate.py", preset)
    assert "`preset` must have a tokenizer" in error


def test_unknown_words_of_a_prompt_are_named(here, tmp_path, recwarn):
    tokenizer = WordTokenizer(["<eos>", "<unk>", "the", "cat"])
    model = TransformerXLCausalLM(
        LSTMBackbone(vocabulary_size=4, num_layers=1, hidden_dim=8)
    )
    save_run(tmp_path / "run", model, 3, tokenizer)
    flags = (f"--workdir={tmp_path / 'run'}", "--max_tokens=1")
    for prompt, words in (
        ("the cat <unk>", ""),
        ("the dog the dog\nbarks", "read as <unk>: ['dog', 'barks']"),
        (" ".join(map(str, range(99))), "'4', '5', ...]"),
    ):
        recwarn.clear()
        _, error = here("generate.py", *flags, f"--prompt={prompt}")
        assert error is None
        told = "".join(str(warning.message) for warning in recwarn)
        assert words in told if words else "vocabulary" not in told


def test_a_model_without_newlines_begins_with_a_space(here, tmp_path):
    tokenizer = CharacterTokenizer(" ab", drop_newlines=True)
    model = TransformerXLCausalLM(
        LSTMBackbone(vocabulary_size=3, num_layers=1, hidden_dim=8)
    )
    save_run(tmp_path / "run", model, 3, tokenizer)
    text, error = here(
        "generate.py", f"--workdir={tmp_path / 'run'}", "--max_tokens=9"
    )
    assert error is None
    assert text[0] == " " and len(text) == 1 + 9 + 1

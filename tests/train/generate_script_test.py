"""Runs train/generate.py."""

from factories import save_run
from factories import small_model

from txl_keras.data import CharacterTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLCausalLM


def test_a_run_and_its_preset_write_the_same_by_seed(run, here, tmp_path):
    TransformerXLCausalLM.from_preset(run[0]).save_to_preset(tmp_path)
    prompt, workdir = "--prompt=Sentence é", f"--workdir={run[0]}"
    flags = (prompt, "--max_tokens=60", "--memory_length=7", "--top_p=0.9")
    text, error = here("generate.py", workdir, *flags, "--seed=1")
    assert error is None
    assert text.startswith("Sentence é")
    assert len(text.encode()) > 60
    preset = f"--preset={tmp_path}"
    assert here("generate.py", preset, *flags, "--seed=1") == (text, None)
    greedy, _ = here("generate.py", preset, *flags, "--temperature=0")
    assert greedy != text
    model = TransformerXLCausalLM.from_preset(tmp_path, tokenizer=None)
    model.save_to_preset(tmp_path)
    for wrong, message in (
        # What Python makes of a byte that is not UTF-8.
        ([workdir, "--prompt=a\udcff"], "UTF-8"),
        ([workdir, "--seed=2147483647"], "seed=2147483647"),
        ([], " must be "),
        ([preset, "--workdir=a"], " must be "),
        ([preset], "`preset` must have a tokenizer"),
    ):
        printed, error = here("generate.py", *wrong)
        assert message in error and printed == ""


def test_unknown_words_of_a_prompt_are_named(here, tmp_path, recwarn):
    tokenizer = WordTokenizer(["<eos>", "<unk>", "the", "cat"])
    model = small_model(make=LSTMBackbone, num_layers=1, vocabulary_size=4)
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
    model = small_model(make=LSTMBackbone, num_layers=1, vocabulary_size=3)
    save_run(tmp_path / "run", model, 3, tokenizer)
    text, error = here(
        "generate.py", f"--workdir={tmp_path / 'run'}", "--max_tokens=9"
    )
    assert error is None
    assert text[0] == " " and len(text) == 1 + 9 + 1

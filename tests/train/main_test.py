"""Runs train/main.py."""

import json
import math
import re
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from factories import assert_same
from factories import byte_model
from script_runs import TINY
from script_runs import metrics_of
from script_runs import results_of

from txl_keras import extending
from txl_keras.data import load_corpus
from txl_keras.data import vocabulary
from txl_keras.scripts import run_length
from txl_keras.scripts import training_run
from txl_keras.training.checkpointing import saved_steps
from txl_keras.workdir import Workdir


def test_a_run_leaves_all_it_promises(run, corpus):
    workdir, printed, _ = run
    results = results_of(workdir)
    test = results["test"]
    assert f"test: {test['bits_per_token']:.3f} bits per byte" in printed
    assert f"gzip -9 {test['compressors']['gzip -9']:.3f}" in printed
    assert "valid and test are the last tenth of mine.txt" in printed
    assert "\nstep 25: sample: " in printed
    if extending.registered("page"):
        assert "sample.txt, surprise.html" in printed
        # At the end with the best weights.
        page = (workdir / "surprise.html").read_text("utf-8")
        assert "mine.txt, valid, step 60" in page
    assert (workdir / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    passage, sample = re.search(
        "--- A passage of the test text\n(.+)\n"
        "--- How the model continues it\n(.+)\n---",
        printed,
        re.DOTALL,
    ).groups()
    assert sample == (workdir / "sample.txt").read_text("utf-8")
    # It may begin within a character.
    assert passage.strip("\ufffd") in corpus.read_text("utf-8")
    assert (workdir / "export/60/saved_model.pb").exists()
    assert (
        sorted(p.name for p in (workdir / "checkpoints").iterdir())[-1]
        == "ckpt-60.safetensors"
    )


def test_a_run_learns_and_says_so_step_by_step(run):
    metrics = metrics_of(run[0])
    measured = [line for line in metrics if "valid" in line]
    metrics = [line for line in metrics if "valid" not in line]
    # At multiples of 7, and where a score or a checkpoint is due.
    assert [line["step"] for line in metrics] == [
        7, 14, 20, 21, 25, 28, 35, 40, 42, 49, 50, 56, 60
    ]  # fmt: skip
    assert [line["step"] for line in measured] == [25, 50, 60]
    assert measured[-1]["valid"]["bits_per_token"] < 5
    assert metrics[0]["bits_per_token"] > 6
    rates = [line["learning_rate"] for line in metrics]
    assert rates == sorted(rates, reverse=True)
    # What was applied in the last step, 59 steps after the peak.
    assert rates[-1] == pytest.approx(
        0.005 * (1 - math.cos(math.pi / 60)), rel=1e-3
    )


def test_a_finished_run_says_so_and_changes_nothing(run, succeed):
    workdir, printed, flags = run
    before = (workdir / "results.json").read_bytes()
    again = succeed("main.py", *flags)
    assert "The run is finished." in again
    assert printed.splitlines()[-1] == again.splitlines()[-1]
    assert (workdir / "results.json").read_bytes() == before


def test_a_finished_run_without_its_best_weights_scores_them_again(
    run, succeed, no_export, tmp_path
):
    workdir = shutil.copytree(run[0], tmp_path / "run")
    before = (workdir / "results.json").read_bytes()
    shutil.rmtree(workdir / "model")
    printed = succeed("main.py", *run[2], f"--workdir={workdir}")
    assert "The run is finished." not in printed
    assert (workdir / "results.json").read_bytes() == before
    assert Workdir(str(workdir)).best_step() == 60


def test_a_finished_run_without_checkpoints_is_kept(run, fail, tmp_path):
    workdir = shutil.copytree(run[0], tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints")
    before = {p: p.read_bytes() for p in workdir.rglob("*.json*")}
    for more in ("--max_steps=60", "--max_steps=75"):
        flags = (*run[2], f"--workdir={workdir}", more)
        error = fail("main.py", *flags)
        assert f"Bring it back, or give --initialize_from={workdir}" in error
    assert before == {p: p.read_bytes() for p in workdir.rglob("*.json*")}


def test_a_finished_run_goes_on_for_longer(run, succeed, no_export, tmp_path):
    workdir = shutil.copytree(run[0], tmp_path / "longer")
    flags = (*run[2], f"--workdir={workdir}", "--max_sample_tokens=0")
    before = metrics_of(workdir)
    assert "step 60 of 75" in succeed("main.py", *flags, "--max_steps=75")
    metrics = metrics_of(workdir)
    assert metrics[: len(before)] == before
    assert [x["step"] for x in metrics[len(before) :]] == [63, 70, 75, 75]
    # As if 75 steps had been planned.
    rate = 0.01 * (1 + math.cos(math.pi * 62 / 75)) / 2
    assert metrics[len(before)]["learning_rate"] == pytest.approx(rate)
    # These flags give 60.
    again = succeed("main.py", *flags)
    assert "--max_steps=60 cannot shorten a run: it keeps its 75" in again
    assert "step 75 of 75\nThe run is finished." in again


def test_a_run_begins_with_the_weights_of_a_preset(
    corpus, succeed, fail, no_export, tmp_path
):
    preset, workdir = tmp_path / "preset", tmp_path / "run"
    model = byte_model(hidden_dim=16, num_heads=2, memory_length=12)
    model.save_to_preset(preset, training={"learning_rate": 0.5})
    flags = [f"--corpus={corpus}", f"--workdir={workdir}", "--batch_size=4"]
    flags += ["--max_steps=1", "--learning_rate=100", "--warmup_steps=0"]
    flags += ["--max_eval_tokens=100", "--max_sample_tokens=0"]
    flags += ["--memory_length=20", "--segment_length=8"]
    printed = succeed("main.py", *flags, f"--initialize_from={preset}")
    assert f"Starts from the best weights of {preset}, at a" in printed
    trained, _ = Workdir(str(workdir)).load_model()
    assert trained.backbone.memory_length == 20
    # The step made it worse.
    assert "step 0: valid" in printed and "No step improved the" in printed
    assert_same(trained.weights, model.weights)
    all_tokens = len(load_corpus(str(corpus)).read("test"))
    first = f"over the first 99 of {all_tokens - 1:,} tokens"
    assert re.search(f"^test: .* bits per byte {first}", printed, re.MULTILINE)
    cases = (
        (["quickstart"], ["Sizes without weights are given as --preset=quick"]),
        ([tmp_path], ["`initialize_from` must be the folder of a language"]),
        ([preset, "--tokenizer=words"], ["`tokenizer` cannot be given with"]),
        ([preset, "--num_layers=2"], ["must not depend", "weights/block_1"]),
    )
    for (origin, *others), messages in cases:
        given = *flags[:1], f"--initialize_from={origin}", *others
        other = f"--workdir={tmp_path / 'other'}"
        fail("main.py", *given, other, messages=messages)


def test_rows_that_replicas_cannot_share_stop_before_any_work(
    train, fail, tmp_path, monkeypatch
):
    # The devices of this process are in use and cannot be split any more.
    monkeypatch.setattr(
        training_run,
        "create_strategy",
        lambda tpu, num_cpu_devices: types.SimpleNamespace(
            num_replicas_in_sync=num_cpu_devices
        ),
    )
    workdir = tmp_path / "run"
    flags = f"--workdir={workdir}", "--num_cpu_devices=2", "--batch_size=4"
    for wrong in ("batch_size=3", "eval_batch_size=5"):
        error = train(*flags, f"--{wrong}", run=fail)
        assert re.search(rf"\b{wrong}\b.*\b2\b", error, re.DOTALL)
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("flag", "value", "choice"),
    [
        ("preset", "huge", "enwik8_base"),
        ("preset", "python_stdlib_small", "give --initialize_from=python_stdl"),
        ("attention_type", "absolute", "vaswani"),
    ],
)
def test_a_value_that_is_no_choice_stops_before_any_work(
    here, flag, value, choice
):
    _, message = here(
        "main.py", "--corpus=c", "--workdir=w", *TINY, f"--{flag}={value}"
    )
    assert f"--{flag}={value}" in message
    assert choice in message


def test_bad_settings_stop_before_any_work(corpus, refuse, tmp_path):
    names = "latin.txt", "short.txt", "tiny.txt"
    files = latin, short, tiny = [tmp_path / name for name in names]
    latin.write_bytes("naïve".encode("latin-1") * 500)
    short.write_text("few words\n" * 20)
    tiny.write_text("few words\n" * 3)
    workdir = tmp_path / "run"
    cases = (
        ([f"--corpus={latin}"], ["latin.txt", "UTF-8", "byte 0"]),
        ([f"--corpus={short}", "--segment_length=99"], ["--batch_size"]),
        ([f"--corpus={tiny}"], ["at least 2 tokens in valid"]),
        (["--weight_decay=0.1"], ["`adam`", "'adamw', 'lamb', 'muon'"]),
        (["--tokenizer=bytes", "--min_count=3"], ["options of ['words']"]),
        ([f"--corpus={tmp_path}"], ["workdir", "folder of the text"]),
        ([f"--corpus={workdir}/*"], ["workdir", "folder of the text"]),
        (["--corpus=tfds:lm2b"], ["lm1b", "'lm2b'"]),
        (["--tokenizer=hugging_face"], ["vocabulary", "tokenizer.json"]),
        (["--dropout=1.5"], ["1.5"]),
    )
    flags = f"--corpus={corpus}", f"--workdir={workdir}", *TINY
    refuse("main.py", cases, *flags)
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_another_configuration_is_refused_and_the_run_kept(run, fail):
    workdir, _, flags = run
    before = {p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()}
    error = fail("main.py", *flags, "--learning_rate=0.02")
    assert "learning_rate was 0.01, now 0.02" in error
    assert before == {
        p: p.read_bytes() for p in workdir.rglob("*") if p.is_file()
    }


def test_a_loss_that_is_not_finite_stops_the_run(train, fail, tmp_path):
    flags = "--learning_rate=1e30", "--checkpoint_every=1"
    error = train(*flags, run=fail)
    assert "the loss is nan" in error
    # Steps that were fine were kept, and the message names the last of them.
    newest = max(saved_steps(str(tmp_path / "checkpoints")))
    assert f"checkpoints/ckpt-{newest}." in error


@pytest.mark.large
def test_the_text_may_be_moved_and_its_newlines_left_out(
    corpus, train, succeed, tmp_path
):
    train("--tokenizer=characters", "--drop_newlines", "--max_steps=7")
    workdir = tmp_path
    moved = tmp_path / "moved.txt"
    moved.write_bytes(corpus.read_bytes())
    flags = (f"--workdir={workdir}", f"--corpus={moved}", "--split=valid")
    printed = succeed("evaluate.py", *flags, "--max_eval_tokens=100")
    assert "bpc over the first 99 of " in printed


@pytest.mark.large
def test_minutes_choose_steps_and_dropout(corpus, succeed, fail, tmp_path):
    flags = (f"--corpus={corpus}", *TINY, "--max_sample_tokens=0")
    timed = tmp_path / "timed"
    printed = succeed("main.py", f"--workdir={timed}", *flags, "--minutes=0.05")
    config = Workdir(str(timed)).read_config()
    steps = config["flags"]["max_steps"]
    assert steps != 60
    dropout = config["model"]["backbone"]["config"]["dropout"]
    precision = config["flags"]["precision"]
    line = (
        rf"^--minutes=0.05: {steps:,} steps instead of --max_steps=60 of "
        rf"\d+ ms in {precision}, "
        rf"[\d.]+ epochs of [\d,]+ tokens; dropout {dropout:g}; 4 rows, adam, "
        r"hidden_dim \d+\.$"
    )
    assert re.search(line, printed, re.MULTILINE)
    last = metrics_of(timed)[-1]["step"]
    # Without the flag, the run has what it chose.
    for more in (["--minutes=0.05", f"--max_steps={last + 5}"], []):
        flags_again = [f for f in flags if "max_steps" not in f]
        again = succeed("main.py", f"--workdir={timed}", *flags_again, *more)
        assert f"step {last} of {last}" in again
        assert "The run is finished" in again
        kept = f"needs --minutes left out: it keeps its {last:,} steps."
        assert (kept in again) == bool(more)
    flags_again.append(f"--workdir={timed}")
    error = fail("main.py", *flags_again, "--minutes=0.2")
    assert "flags.minutes was 0.05, now 0.2" in error
    printed = succeed("main.py", *flags_again, f"--max_steps={last + 5}")
    assert f"step {last} of {last + 5}" in printed


@pytest.mark.large
def test_minutes_do_not_read_a_short_text_without_end(
    corpus, succeed, tmp_path
):
    lines = corpus.read_text("utf-8").splitlines(keepends=True)
    short = tmp_path / "short.txt"
    short.write_text("".join(lines[:60]), "utf-8")
    printed = succeed(
        "main.py",
        f"--corpus={short}",
        f"--workdir={tmp_path / 'run'}",
        *(flag for flag in TINY if not flag.startswith("--dropout")),
        "--minutes=1",
    )
    assert "enough for such a short text; dropout 0.4; " in printed
    assert "--initialize_from=enwik8_small or python_stdlib_small" in printed


@pytest.mark.parametrize(
    "is_fast, hidden_dim",
    [(False, 128), pytest.param(True, 256, marks=pytest.mark.large)],
)
def test_minutes_choose_muon_and_a_wider_model_where_bfloat16_is_fast(
    corpus, succeed, no_export, tmp_path, monkeypatch, is_fast, hidden_dim
):
    monkeypatch.setattr(run_length, "_TIMED_SECONDS", 0.1)
    monkeypatch.setattr(run_length, "_has_bfloat16", lambda _: is_fast)
    monkeypatch.setattr(run_length, "_MUON_TOKENS", 1000)
    monkeypatch.setattr(run_length, "_WIDE_TOKENS", 1000)
    monkeypatch.setattr(run_length, "_BYTES_PER_MINUTE", 1000)
    monkeypatch.setitem(run_length._MUON, "num_layers", 1)  # compiles sooner
    flags = f"--corpus={corpus}", f"--workdir={tmp_path}", "--minutes=0.01"
    flags = *flags, "--max_sample_tokens=0"
    wider = f", hidden_dim {hidden_dim}" if is_fast else ""
    assert f"16 rows, muon{wider}.\n" in succeed("main.py", *flags)
    config = Workdir(str(tmp_path)).read_config()["model"]["backbone"]["config"]
    assert config["hidden_dim"] == hidden_dim
    assert config["vocabulary_size"] < 500  # which all of the text has
    # As on a device that would learn subwords from more text.
    monkeypatch.setattr(run_length, "_BYTES_PER_MINUTE", 2000)
    assert "The run is finished" in succeed("main.py", *flags)


@pytest.mark.parametrize(
    "is_ours, chosen", [(False, "8 rows, adam"), (True, "16 rows, muon")]
)
def test_minutes_read_a_text_a_few_times_from_trained_weights(
    is_ours, chosen, succeed, no_export, tmp_path, monkeypatch
):
    preset = str(tmp_path / "preset")
    if is_ours:
        monkeypatch.setattr(run_length, "TRAINED", {preset: preset})
    monkeypatch.setattr(run_length, "_MUON_TOKENS", 500)
    monkeypatch.setattr(run_length, "_TIMED_SECONDS", 0.1)
    model = byte_model(memory_length=8)
    model.save_to_preset(preset)
    (tmp_path / "short.txt").write_text("a line of text\n" * 50)
    printed = succeed(
        "main.py",
        f"--corpus={tmp_path / 'short.txt'}",
        f"--workdir={tmp_path / 'run'}",
        f"--initialize_from={preset}",
        *("--segment_length=8", "--max_sample_tokens=0", "--minutes=1"),
    )
    assert " 5 epochs of 690 tokens, which is enough for such" in printed
    assert f"; dropout 0; {chosen}.\n" in printed
    # After each epoch, and before the first.
    assert len(re.findall(r"step \d+: valid", printed)) == 6


def test_minutes_do_not_continue_a_model_that_was_not_trained_here(
    train, fail, group
):
    error = train(f"--workdir={group[0]}", "--minutes=0.1", run=fail)
    assert "holds a run of another configuration" in error


@pytest.mark.large
def test_subwords_are_trained_and_scored_by_the_byte(
    corpus, train, succeed, tmp_path
):
    pytest.importorskip("tensorflow_text")
    pytest.importorskip("sentencepiece")
    flags = "--tokenizer=sentencepiece", "--vocabulary_size=290"
    printed = train(*flags, "--max_steps=10")
    test = results_of(tmp_path)["test"]
    text = load_corpus(corpus).read("test")
    tokenizer = Workdir(str(tmp_path)).load_tokenizer()
    first = tokenizer.decode_bytes(tokenizer.encode(text)[:1])
    num_bytes = len(text.removeprefix(first))  # the first is not scored
    bits = test["nll"] * test["num_tokens"] / np.log(2) / num_bytes
    assert test["bits_per_byte"] == pytest.approx(bits)
    assert f"ppl over {test['num_tokens']:,} tokens, {bits:.3f} bits" in printed
    written = succeed("generate.py", f"--workdir={tmp_path}", "--prompt=é")
    assert written.startswith("é")
    flags = (f"--workdir={tmp_path}", "--raw_text", "--max_batch_size=3")
    succeed("export.py", *flags)
    served = tmp_path / "export_text" / "10"
    settings = json.loads((served / "assets" / "settings.json").read_text())
    assert settings["max_batch_size"] == 3
    loaded = tf.saved_model.load(served)
    assert loaded.score_text(["é"])["nll"].shape == (1,)


@pytest.mark.large
def test_words_are_counted_and_scored_in_perplexity(words_run):
    workdir, printed, _ = words_run
    tokenizer = Workdir(str(workdir)).load_tokenizer()
    # Words that came once are unknown; the line end and <unk> are words too.
    assert tokenizer.vocabulary_size == 24
    assert not any("once" in word for word in tokenizer.vocabulary.symbols)
    results = results_of(workdir)
    ppl = results["test"]["perplexity"]
    assert 1 < ppl < 15
    assert f"test: {ppl:.2f} ppl" in printed
    assert "bpc" not in printed
    model, step = Workdir(str(workdir)).load_model()
    assert step == 60
    assert model.backbone.token_embedding.cutoffs == (6, 20)
    assert model.backbone.token_embedding.dims == (16, 8, 4)
    sample = (workdir / "sample.txt").read_text("utf-8")
    assert set(sample.split()) <= {*tokenizer.vocabulary.symbols}


@pytest.mark.large
def test_a_vocabulary_file_is_the_vocabulary(word_corpus, succeed, tmp_path):
    words = ["<eos>", "the", ".", "is", ",", "and", "so", "on", "UNK", "never"]
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("\n".join(words) + "\n", encoding="utf-8")
    flags = (
        f"--corpus={word_corpus}",
        f"--workdir={tmp_path / 'run'}",
        *TINY,
        "--tokenizer=words",
        f"--vocabulary={vocabulary}",
        "--optimizer=lamb",
        "--learning_rate=0.1",
        "--max_steps=8",
    )
    succeed("main.py", *flags, "--unknown=UNK")
    workdir = Workdir(str(tmp_path / "run"))
    tokenizer = workdir.load_tokenizer()
    assert list(tokenizer.vocabulary.symbols) == words
    ids = tokenizer.encode("the naïve 3 is\n").tolist()
    assert [words[i] for i in ids] == ["the", "UNK", "UNK", "is", "<eos>"]
    # Lamb learned: a guess among ten words is 2.3 nats.
    assert metrics_of(tmp_path / "run")[-1]["valid"]["nll"] < 2.1
    assert workdir.read_config()["flags"]["optimizer"] == "lamb"


@pytest.mark.large
def test_cutoffs_are_chosen_for_large_vocabularies(
    word_corpus, train, tmp_path, monkeypatch
):
    monkeypatch.setattr(vocabulary, "LARGE_VOCABULARY", 20)
    flags = f"--corpus={word_corpus}", "--tokenizer=words", "--cutoffs=auto"
    printed = train(*flags, "--max_steps=3", "--max_sample_tokens=0")
    config = Workdir(str(tmp_path)).read_config()
    cutoffs = config["model"]["backbone"]["config"]["cutoffs"]
    assert len(cutoffs) == 3 and cutoffs == sorted(set(cutoffs))
    assert f"(cutoffs {cutoffs})" in printed and "A passage" not in printed

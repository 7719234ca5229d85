"""Tests of what a new user meets: errors that name the flag, and progress."""

import numpy as np
import tensorflow as tf
from script_flags import flags_of
from script_runs import write_mails

from txl_keras.data import ByteTokenizer
from txl_keras.data import WordTokenizer
from txl_keras.models import LSTMBackbone
from txl_keras.models import TransformerXLBackbone
from txl_keras.models import TransformerXLCausalLM
from txl_keras.models import TransformerXLTextClassifier
from txl_keras.scripts import training_flags
from txl_keras.workdir import Workdir

NOT_UTF8 = "\udcff"  # as Python reads the byte 255 of a command line


def test_an_xlnet_has_defaults_of_its_own():
    required = "--workdir=w", "--corpus=c"
    with flags_of("pretrain_xlnet.py", *required) as parse:
        flags = parse()
        assert flags.learning_rate == 2.5e-4
        assert (flags.batch_size, flags.segment_length) == (16, 128)
        assert training_flags.result_settings()["warmup_steps"] == 0


# === Errors ===


def test_flags_of_pictures_are_checked_before_any_work(
    group, corpus, fail, tmp_path
):
    memory, none, _ = group
    output = tmp_path / "picture.png"
    one, two = f"--workdirs={memory}", f"--workdirs={memory},{none}"
    text = f"--corpus={corpus}"
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"picture": "recl", "models": [{"workdir": "a"}]}')
    config = memory / "config.json"
    for picture, flags, messages in (
        ("positions", [one, "--layers=0"], ["`layers` can only be given"]),
        ("positions", [f"{one},{memory}/"], ["`workdirs`", "different"]),
        ("positions", [two, "--labels=a"], ["`labels`", "2", "--labels=a"]),
        ("positions", [one, f"--labels={NOT_UTF8}"], ["`labels`", r"b'\xff'"]),
        (
            "positions",
            [one, text, f"--output={config.with_suffix('.png')}"],
            ["`output` must not replace", str(config)],
        ),
        ("positions", [one, "--corpus="], ["`corpus` must not be empty"]),
        ("attention", [one, "--heads=x"], ["`heads` must be numbers", "=x"]),
        ("attention", [one, "--heads="], ["`heads` must be numbers"]),
        (
            "attention",
            [one, text, "--segment_length=9999"],
            ["`segment_length` and", "9999", "tokens"],
        ),
        ("memory_lengths", [one, "--memory_length=4"], ["`memory_length` can"]),
        ("context_losses", [one, text, "--context_lengths=9,9999"], ["9,999"]),
        (
            "recl",
            [f"--numbers={damaged}"],
            ["`numbers`", "damaged", "measure them"],
        ),
    ):
        fail(
            "plot.py",
            f"--picture={picture}",
            f"--output={output}",
            *flags,
            messages=messages,
        )
    assert not output.exists()
    assert Workdir(str(memory)).read_config()["flags"] == {"segment_length": 5}


def test_flags_of_a_group_are_checked_before_its_text(
    group, corpus, fail, tmp_path
):
    memory, none, _ = group
    output = tmp_path / "recl.json"
    other = tmp_path / "other.json"
    other.write_text("{}")
    for flags, messages in (
        (["--top_r="], ["`top_r` must be numbers"]),
        (["--top_r=nan"], ["`top_r`", "nan"]),
        (["--labels=a,a"], ["`labels`", "a,a"]),
        (["--segment_lengths=3"], ["`segment_lengths`", "2 num"]),
        (["--segment_lengths=3,0"], ["`segment_lengths`", "=0"]),
        ([f"--output={other}"], ["`output` must not replace", str(other)]),
    ):
        fail(
            "recl.py",
            f"--workdirs={memory},{none}",
            "--corpus=no/such/text",  # is found missing after all of them
            f"--output={output}",
            *flags,
            messages=messages,
        )
    assert not output.exists()
    assert other.read_text() == "{}"


def test_flags_of_an_evaluation_are_checked_before_any_score(
    group, corpus, fail, tmp_path
):
    memory, none, _ = group
    lstm = tmp_path / "lstm"
    model = TransformerXLCausalLM(
        LSTMBackbone(vocabulary_size=256, num_layers=1, hidden_dim=8)
    )
    config = {"flags": {"segment_length": 5}}
    Workdir(str(lstm)).create(model, 3, config, ByteTokenizer())
    (none / "evaluation_all.json").write_text("{}")
    for workdir, flags, messages in (
        (memory, ["--corpus="], ["`corpus` must not be empty"]),
        (memory, [f"--corpus={NOT_UTF8}"], ["`corpus`", "UTF-8"]),
        (memory, [f"--data_dir={NOT_UTF8}"], ["`data_dir`", "UTF-8"]),
        (memory, ["--token_nll_path="], ["`token_nll_path`", "folder"]),
        (none, [], ["evaluation_all.json", "must hold a JSON list"]),
        (lstm, ["--same_length"], ["`same_length`", "LSTM"]),
    ):
        fail(
            "evaluate.py", f"--workdir={workdir}", f"--corpus={corpus}",
            "--split=all", *flags,
            messages=messages,
        )  # fmt: skip
    assert not (memory / "evaluation_all.json").exists()


def test_a_configuration_names_text_but_no_folder_to_write_to(
    corpus, fail, succeed, tmp_path, capsys
):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    model = TransformerXLCausalLM(
        LSTMBackbone(vocabulary_size=256, num_layers=1, hidden_dim=8)
    )
    text = {"corpus": str(corpus), "data_dir": str(theirs)}
    config = {"flags": {"segment_length": 5}, "corpus": text}
    run = tmp_path / "run"
    Workdir(str(run)).create(model, 3, config, ByteTokenizer())
    flags = (f"--workdir={run}", "--max_eval_tokens=50")
    message = "`data_dir` must be given, as config.json names"
    fail("evaluate.py", *flags, messages=[message, str(theirs)])
    assert not list(theirs.iterdir())
    succeed("evaluate.py", *flags, f"--data_dir={tmp_path / 'mine'}")
    assert f"From config.json: --corpus={corpus}\n" in capsys.readouterr().err
    # Where text was prepared before, as by the run itself, it is found.
    (theirs / "txl_keras_tokens").mkdir()
    succeed("evaluate.py", *flags)


def test_flags_of_prepared_text_are_checked_before_it_is_read(
    corpus, fail, tmp_path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    for flags, messages in (
        ([f"--output={corpus}/x"], ["`output`", "txt/x"]),
        ([f"--output={NOT_UTF8}"], ["`output`", "UTF-8"]),
        (["--vocabulary=no/file"], ["`vocabulary` must be a file", "no/file"]),
        ([f"--vocabulary={corpus}"], ["`tokenizer` must be given"]),
        (
            [f"--vocabulary={corpus}", "--tokenizer=bytes"],
            [f"`vocabulary` {corpus}", "bytes"],
        ),
        ([f"--unknown={NOT_UTF8}", "--tokenizer=words"], ["`unknown`"]),
        (["--document_separator="], ["`document_separator`", "empty"]),
        (
            ["--corpus=enwik8", f"--manual_dir={empty}"],
            ["`manual_dir`", str(empty)],
        ),
    ):
        fail(
            "prepare_data.py", f"--corpus={corpus}",
            f"--data_dir={tmp_path / 'data'}", *flags,
            messages=messages,
        )  # fmt: skip


def test_flags_of_a_classifier_are_checked_before_texts_are_read(
    group, fail, tmp_path
):
    mails = write_mails(tmp_path / "mails.tsv", range(20))
    classifier = tmp_path / "classifier"
    backbone = TransformerXLBackbone(256, 1, 2, 8, 12)
    model = TransformerXLTextClassifier(backbone, 2)
    classifier.mkdir()
    Workdir(str(classifier)).claim(
        {
            "flags": {},
            "corpus": {},
            "data": {},
            "model": {**model.get_config(), "dtype": None},
        },
        ByteTokenizer(),
    )
    run = tmp_path / "run"
    for flags, messages in (
        (["--train_file="], ["`train_file` must be a file"]),
        (["--train_file=no.tsv"], ["`train_file`", "no.tsv"]),
        (["--test_file=no.tsv"], ["`test_file`", "no.tsv"]),
        ([f"--train_file={NOT_UTF8}.tsv"], ["`train_file`", "UTF-8"]),
        (["--valid_share=0"], ["`valid_share`", "0.0"]),
        (
            [f"--valid_file={mails}", "--valid_share=0.2"],
            ["`valid_share` and `valid_file`"],
        ),
        (["--clip_norm=nan"], ["`clip_norm`", "nan"]),
        (["--initializer_stddev=nan"], ["`initializer_stddev`", "nan"]),
        (["--warmup_share=nan"], ["`warmup_share`", "nan"]),
        (["--initialize_from=none"], ["`initialize_from`", "none/config"]),
        (
            [f"--initialize_from={classifier}"],
            ["`initialize_from`", "TransformerXLTextClassifier"],
        ),
        (["--label_column=text"], ["training labels, ['WIN ", "..."]),
    ):
        error = fail(
            "finetune.py",
            f"--workdir={run}",
            f"--train_file={mails}",
            *flags,
            messages=messages,
        )
        assert len(error) < 500
    assert not run.exists()


def test_unknown_words_of_a_prompt_are_named(succeed, tmp_path, recwarn):
    tokenizer = WordTokenizer(["<eos>", "<unk>", "the", "cat"])
    model = TransformerXLCausalLM(
        LSTMBackbone(vocabulary_size=4, num_layers=1, hidden_dim=8)
    )
    Workdir(str(tmp_path / "run")).create(model, 3, {}, tokenizer)
    flags = (f"--workdir={tmp_path / 'run'}", "--max_tokens=1")
    for prompt, words in (
        ("the cat <unk>", ""),
        ("the dog the dog\nbarks", "read as <unk>: ['dog', 'barks']"),
        (" ".join(map(str, range(99))), "'4', '5', ...]"),
    ):
        recwarn.clear()
        succeed("generate.py", *flags, f"--prompt={prompt}")
        told = "".join(str(warning.message) for warning in recwarn)
        assert words in told if words else "vocabulary" not in told


def test_a_tokenizer_goes_to_hugging_face_and_back(fail, succeed, tmp_path):
    model = TransformerXLCausalLM.from_preset(
        "quickstart", num_layers=1, hidden_dim=8, intermediate_dim=4,
        num_heads=2, head_dim=4, vocabulary_size=4, cold_start="zeros",
    )  # fmt: skip
    words = ["<eos>", "<unk>", "the", "cat"]
    tokenizer = WordTokenizer(words, lower_case=True)
    run, folder, back = (tmp_path / name for name in ("run", "hf", "back"))
    Workdir(str(run)).create(model, 3, {}, tokenizer)
    to = ("--input_format=workdir", f"--input={run}", f"--output={folder}")
    printed = succeed("convert.py", *to, "--output_format=hugging_face")
    assert f"--vocabulary={run}/tokenizer.json" in printed
    modes = {path.name: path.stat().st_mode for path in folder.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]
    flags = (
        "--input_format=hugging_face", f"--input={folder}",
        f"--vocabulary={run}/tokenizer.json", f"--output={back}",
    )  # fmt: skip
    for flag, name in (
        ("--lower_case", "lower_case"),
        ("--symbols=bytes", "symbols"),
    ):
        message = f"['{name}'] must be left out"
        fail("convert.py", *flags, flag, messages=[message])
    succeed("convert.py", *flags)
    returned = Workdir(str(back)).load_tokenizer()
    assert returned.get_config() == tokenizer.get_config()


# === Classifier ===


def test_segments_that_no_text_ends_in_have_no_backward_pass():
    backbone = TransformerXLBackbone(
        vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=8,
        intermediate_dim=6, memory_length=5,
    )  # fmt: skip
    model = TransformerXLTextClassifier(backbone, 2, segment_length=4)
    ids = np.random.default_rng(0).integers(0, 9, (3, 15))
    lengths = np.array([15, 10, 14])  # in segments 3, 2 and 3 of 0 to 3
    backward = []

    @tf.custom_gradient
    def counted(hidden):
        def gradient(upstream):
            backward.append(float(tf.norm(upstream)))
            return upstream

        return tf.identity(hidden), gradient

    call = backbone.call

    def call_and_count(*args, **kwargs):
        hidden, memory = call(*args, **kwargs)
        return counted(hidden), memory

    backbone.call = call_and_count
    for pooling, num_segments in (("last", 2), ("mean", 4)):
        model.pooling = pooling
        backward.clear()
        with tf.GradientTape() as tape:
            logits = model((ids, lengths), training=True)
        tape.gradient(logits, model.trainable_variables)
        assert len(backward) == num_segments
        assert min(backward) > 0

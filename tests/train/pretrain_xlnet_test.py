"""Runs train/pretrain_xlnet.py."""

from script_flags import flags_of
from script_runs import metrics_of
from script_runs import results_of

from txl_keras.models import XLNetPermutationLM
from txl_keras.scripts import training_flags
from txl_keras.workdir import Workdir

XLNET = (
    "--tokenizer=bytes",
    "--num_layers=1",
    "--num_heads=2",
    "--hidden_dim=8",
    "--intermediate_dim=12",
    "--memory_length=10",
    "--batch_size=4",
    "--segment_length=12",
    "--eval_batch_size=3",
    "--max_steps=30",
    "--eval_every=15",
    "--max_eval_tokens=200",
    "--learning_rate=0.01",
    "--reuse_half",
)


def test_an_xlnet_is_trained_and_comes_back(
    corpus, succeed, fail, refuse, tmp_path
):
    workdir = tmp_path / "run"
    flags = (f"--corpus={corpus}", f"--workdir={workdir}", *XLNET)
    printed = succeed("pretrain_xlnet.py", *flags)
    assert "of each 12 tokens 2 are predicted, 8 per step" in printed
    results = results_of(workdir)
    losses = [x["loss"] for x in metrics_of(workdir) if "loss" in x]
    assert losses[-1] < losses[0]
    assert f"test: {results['test']['bits_per_token']:.3f} bits" in printed
    # Far from trained: a guess by frequency knows more.
    assert 2 < results["guess"]["nll"] < results["test"]["nll"] < 5.6
    assert (workdir / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"

    assert Workdir(str(workdir)).best_step() == results["step"]
    model = XLNetPermutationLM.from_preset(workdir)
    assert model.backbone.reuse_length == 6

    before = (workdir / "results.json").read_bytes()
    again = succeed("pretrain_xlnet.py", *flags)
    assert "The run is finished." in again
    assert again.splitlines()[-4:] == printed.splitlines()[-4:]
    assert (workdir / "results.json").read_bytes() == before
    cases = (
        (["--seed=2"], ["flags.seed was 0, now 2"]),
        (["--hidden_dim=10"], ["hidden_dim was 8, now 10"]),
    )
    refuse("pretrain_xlnet.py", cases, *flags)
    error = fail("generate.py", f"--workdir={workdir}")
    assert "must hold a TransformerXLCausalLM" in error
    assert f"{workdir}/model, which holds a XLNetPermutationLM" in error


def test_what_an_xlnet_cannot_be_trained_on_leaves_nothing(
    corpus, refuse, tmp_path
):
    workdir = tmp_path / "run"
    cases = (
        (["--segment_length=13"], ["`segment_length` must be even"]),
        (["--segment_length=10"], ["segment_length=5, drop_remainder"]),
        (["--segment_length=99998"], ["tokens"]),
    )
    flags = f"--corpus={corpus}", f"--workdir={workdir}", *XLNET
    refuse("pretrain_xlnet.py", cases, *flags)
    assert not workdir.exists()


def test_an_xlnet_has_defaults_of_its_own():
    required = "--workdir=w", "--corpus=c"
    with flags_of("pretrain_xlnet.py", *required) as parse:
        flags = parse()
        assert flags.learning_rate == 2.5e-4
        assert (flags.batch_size, flags.segment_length) == (16, 128)
        assert training_flags.result_settings()["warmup_steps"] == 0

"""Pictures: what is written in them, as SVG says it in comments."""

import numpy as np
import pytest

from txl_keras.evaluation.plots import FORMATS
from txl_keras.evaluation.plots import plot_attention_maps
from txl_keras.evaluation.plots import plot_learning_curves
from txl_keras.evaluation.plots import plot_losses

CURVES = {"a": ([1, 2, 4], [2.0, 1.5, 1.4]), "b": ([1, 2], [1.9, 1.8])}


def texts_of(path):
    """All texts of an SVG file."""
    parts = path.read_text("utf-8").split("<!-- ")[1:]
    return [part.split(" -->")[0] for part in parts]


@pytest.mark.parametrize(
    "ending, beginning", [("png", b"\x89PNG"), ("pdf", b"%PDF-")]
)
def test_the_ending_is_the_kind_of_file(ending, beginning, tmp_path):
    assert ending in FORMATS
    path, other = tmp_path / f"losses.{ending}", tmp_path / "other"
    other.write_text("kept")
    path.symlink_to(other)  # replaced, not written through
    plot_losses(CURVES, str(path), "context", "token", [1, 2])
    assert path.read_bytes().startswith(beginning)
    assert other.read_text() == "kept"


@pytest.mark.parametrize(
    "unit, name", [("byte", "bits per byte"), ("word", "ppl")]
)
def test_losses_are_in_the_measure_of_the_field(unit, name, tmp_path):
    path = tmp_path / "curves.svg"
    curve = {
        "tokens_per_step": 4,
        "train": {"steps": [10, 20], "nll": [4.0, 3.0]},
        "valid": {"steps": [20], "nll": [3.5]},
    }
    models = [{"label": name, **curve} for name in ("one", "two", "two")]
    plot_learning_curves({"unit": unit, "models": models}, str(path))
    texts = texts_of(path)
    assert {name, f"{unit}s read", "one, train", "two, valid"} <= set(texts)
    assert texts.count("two, valid") == 1  # of two seeds
    path = tmp_path / "losses.svg"
    plot_losses(
        {"a": ([0, 3, 1200], [0.0, 0.0, 0.0])}, str(path), "memory", unit,
        [0, 3, 1200],
    )  # fmt: skip
    assert {name, "memory", "0", "3", "1,200"} <= set(texts_of(path))


def test_bounds_of_losses_are_a_band(tmp_path):
    path = tmp_path / "losses.svg"
    curve = [1, 2], [2.7, 2.5], [2.6, 2.4], [2.8, 2.6]
    for count in (2, 4):
        plot_losses({"a": curve[:count]}, str(path), "place", "token", [1, 2])
        has_band = "PolyCollection" in path.read_text("utf-8")
        assert has_band == (count == 4)


def test_maps_name_heads_layers_and_few_tokens(tmp_path):
    path = tmp_path / "maps.svg"
    maps = np.random.default_rng(0).uniform(0, 1, (2, 2, 4, 6))
    remembering = {
        "label": "memory", "layers": [0, 5], "heads": [1, 7], "maps": maps,
        "tokens": ["x", "y", "$", "␣", "$", "é"],
    }  # fmt: skip
    alone = {
        "label": "none", "layers": [3], "heads": [4],
        "maps": np.tril(np.full((1, 1, 50, 50), 0.5)), "tokens": ["q"] * 50,
    }  # fmt: skip
    numbers = {"unit": "byte", "models": [remembering, alone]}
    plot_attention_maps(numbers, str(path))
    texts = texts_of(path)
    assert [t for t in texts if t.startswith("head")] == [
        "head 1", "head 7"] * 2 + ["head 4"]  # fmt: skip
    for label in (
        "memory, layer 0", "memory, layer 5", "none, layer 3",
        "memory | segment: key (byte)", "segment: key (byte)",
    ):  # fmt: skip
        assert any(label in text for text in texts)
    # Below each of four maps, the segment at their sides too.
    assert [texts.count(token) for token in "xy$q"] == [4, 4, 16, 0]

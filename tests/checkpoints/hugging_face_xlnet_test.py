"""XLNet from folders of Hugging Face, and the numbers of its code.

`golden.npz` and `golden_masks.npz` are outputs of `XLNetModel` of transformers
4.35.2 for the stored weights. In the latter, "uni" has `clamp_len=3,
reuse_len=4, mem_len=6` and its `create_mask`, which raises in that version,
replaced by what it documents; "bi" has `clamp_len=2`, padding, three token
types and an order a row. `golden_head.npz` has the logits of an
`XLNetLMHeadModel` of the same body, over two segments, with an order a row.
"""

import numpy as np
import pytest
from factories import change_json
from keras import ops
from stored_models import GOLDEN
from stored_models import change_tensors
from stored_models import check_memory
from stored_models import copy_stored

from txl_keras.checkpoints import load_hugging_face_xlnet
from txl_keras.layers import Memory

pytestmark = pytest.mark.every_backend

FOLDER = GOLDEN / "hf_xlnet_bi"
T = 7


@pytest.fixture
def folder(tmp_path):
    return copy_stored("hf_xlnet_bi", tmp_path)


def add_head(tensors, bias=None):
    """As an XLNetLMHeadModel stores them."""
    body = {f"transformer.{name}": x for name, x in tensors.items()}
    bias = np.zeros(37, np.float32) if bias is None else bias
    weight = tensors["word_embedding.weight"].copy()
    return {**body, "lm_loss.weight": weight, "lm_loss.bias": bias}


def add_classifier(tensors):
    body = {f"transformer.{name}": x for name, x in tensors.items()}
    return {**body, "logits_proj.bias": np.zeros(2, np.float32)}


@pytest.mark.parametrize("add", [dict, add_head, add_classifier])
def test_equals_hugging_face_with_two_streams(add, folder):
    change_tensors(folder, add)
    backbone = load_hugging_face_xlnet(folder, drop_head=add is not dict)
    golden = np.load(FOLDER / "golden.npz")
    tokens = golden["tokens"]
    content, memory = backbone(tokens)
    np.testing.assert_allclose(content, golden["plain_output"], atol=1e-5)
    check_memory(memory, golden["mems"])
    memory = Memory(
        tuple(ops.array(x.transpose(1, 0, 2)) for x in golden["mems"]),
        ops.full([len(tokens)], golden["mems"].shape[1], "int32"),
    )
    _, query, _ = backbone(
        tokens,
        permutation_mask=golden["perm_mask"] == 0,
        target_mapping=golden["target_mapping"],
        memory=memory,
    )
    np.testing.assert_allclose(query, golden["two_stream_output"], atol=1e-5)


def test_equals_hugging_face_in_one_direction_over_segments():
    backbone = load_hugging_face_xlnet(
        FOLDER,
        attention_type="uni",
        clamp_length=3,
        reuse_length=4,
        memory_length=6,
    )
    golden = np.load(FOLDER / "golden_masks.npz")
    memory = None
    for segment in (slice(0, T), slice(T, 2 * T)):
        content, memory = backbone(
            golden["uni_tokens"][:, segment],
            token_type_ids=golden["uni_types"][:, segment],
            memory=memory,
        )
        np.testing.assert_allclose(
            content, golden["uni_output"][:, segment], atol=1e-5
        )
    check_memory(memory, golden["uni_mems"])


def test_equals_hugging_face_with_all_masks_over_segments():
    backbone = load_hugging_face_xlnet(FOLDER, clamp_length=2)
    golden = np.load(FOLDER / "golden_masks.npz")

    def of_segment(segment):
        return golden["bi_tokens"][:, segment], {
            "token_type_ids": golden["bi_types"][:, segment],
            "padding_mask": ~golden["bi_padding"][:, segment],
        }

    ids, call = of_segment(slice(0, T))
    content, memory = backbone(ids, **call)
    np.testing.assert_allclose(content, golden["bi_first"], atol=1e-5)
    ids, call = of_segment(slice(T, 2 * T))
    content, query, memory = backbone(
        ids,
        permutation_mask=golden["bi_perm_mask"] == 0,
        target_mapping=golden["bi_target_mapping"],
        memory=memory,
        **call,
    )
    np.testing.assert_allclose(content, golden["bi_content"], atol=1e-5)
    np.testing.assert_allclose(query, golden["bi_query"], atol=1e-5)
    check_memory(memory, golden["bi_mems"])


def test_the_configuration_becomes_ours(folder):
    changes = {"reuse_len": 3, "clamp_len": 9, "dropout": 0.1}
    changes |= {"attn_type": "uni", "initializer_range": 0.05}
    change_json(folder / "config.json", changes)
    config = load_hugging_face_xlnet(folder).get_config()
    expected = {
        "reuse_length": 3,
        "attention_type": "uni",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "clamp_length": 9,
        "layer_norm_epsilon": 1e-12,
        "initializer_stddev": 0.05,
    }
    assert {name: config[name] for name in expected} == expected


def test_a_null_memory_length_is_none_unless_it_is_passed(folder):
    change_json(folder / "config.json", {"mem_len": None})
    assert load_hugging_face_xlnet(folder).memory_length == 0
    assert load_hugging_face_xlnet(folder, memory_length=4).memory_length == 4


def test_the_head_of_a_language_model_equals_hugging_face(folder):
    golden = np.load(FOLDER / "golden_head.npz")
    change_tensors(folder, lambda x: add_head(x, golden["bias"]))
    model = load_hugging_face_xlnet(folder)
    ids = golden["tokens"]
    _, memory = model.backbone(ids[:, :T])
    log_probs, _ = model.log_probs(
        ids[:, T:],
        golden["sees"],
        np.eye(T, dtype="float32")[golden["places"]],
        memory=memory,
    )
    expected = ops.log_softmax(golden["logits"])
    np.testing.assert_allclose(log_probs, expected, atol=1e-5)


def test_a_table_of_the_softmax_is_that_of_the_embedding_if_tied(folder):
    def untie(tensors):
        tensors = add_head(tensors)
        tensors["lm_loss.weight"] = 2 * tensors["lm_loss.weight"]
        return tensors

    change_tensors(folder, untie)
    with pytest.raises(ValueError, match="different in the file.*lm_loss"):
        load_hugging_face_xlnet(folder)
    change_json(folder / "config.json", {"tie_word_embeddings": False})
    model = load_hugging_face_xlnet(folder)
    np.testing.assert_array_equal(
        model.softmax.kernels[0],
        2 * model.backbone.token_embedding.embeddings[0],
    )


def test_another_head_is_dropped_only_if_asked_to(folder):
    change_tensors(folder, add_classifier)
    with pytest.raises(ValueError, match="logits_proj.bias.*drop_head=True"):
        load_hugging_face_xlnet(folder)

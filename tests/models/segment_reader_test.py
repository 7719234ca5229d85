import numpy as np
import pytest
from factories import D
from factories import V
from factories import small_backbone
from keras import ops

from txl_keras.backend import tf
from txl_keras.models import SegmentReader

pytestmark = pytest.mark.every_backend

TOKENS = np.random.default_rng(2).integers(0, V, (3, 60))
SHAW = {"attention_type": "shaw", "max_positions": 9}
AL_RFOU = {"attention_type": "al_rfou", "max_positions": 4, "memory_length": 0}
VASWANI = {"attention_type": "vaswani", "memory_length": 0}


def make_backbone(**changes):
    """With one block: each call of a block takes 20 ms."""
    return small_backbone(**{"num_layers": 1, "memory_length": 7, **changes})


def read(reader, ids, reset=None):
    """Reads and remembers a segment, maybe after resets of rows."""
    if reset is not None:
        reader.reset_rows(reset)
    hidden, entries = reader.read(ids)
    reader.remember(entries)
    return np.array(ops.cast(hidden, "float32"))


def check_states(
    backbone,
    lengths=(4, 4, 1, 1, 11, 2, 1),
    resets=None,
    memory_length=None,
    atol=1e-5,
):
    """Compares segments of these lengths with those of the training path."""
    reader = SegmentReader(backbone, 3, max(lengths), memory_length)
    reader.begin()
    memory = None
    if memory_length is not None:
        memory = backbone.initial_memory(3, memory_length)
    for i, end in enumerate(np.cumsum(lengths)):
        ids = TOKENS[:, end - lengths[i] : end]
        reset = None if resets is None else resets[i]
        expected, after = backbone(ids, memory=memory, reset=reset)
        memory = after if backbone.remembers else None
        assert reader.memory().keys[0].dtype == expected.dtype
        found = read(reader, ids, reset)
        expected = ops.cast(expected, "float32")
        np.testing.assert_allclose(found, expected, atol=atol)


ZEROS = {"cold_start": "zeros"}


@pytest.mark.parametrize(
    "settings",
    [
        {"num_layers": 2},
        {"same_length": "pytorch"},
        {"same_length": "pytorch", **ZEROS},
        {"clamp_length": 4, "same_length": True, **ZEROS},
        {
            "tie_attention_biases": False,
            "normalize_first": True,
            "normalize_output": True,
        },
        {"normalize_first": True, **ZEROS},
        {**SHAW, **ZEROS},
        {**SHAW, "clamp_length": 5, "same_length": True},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_states_are_those_of_the_training_path(settings):
    backbone = make_backbone(**settings)
    if "normalize_first" in settings:
        # Otherwise the norm of an empty entry is zero, as the entry is.
        backbone.blocks[0]._attention_norm.beta.assign(np.arange(D) / 10)
    # Shorter than memory, one by one, longer, and a rest.
    check_states(backbone)


def test_texts_are_read_on_from_where_they_ended():
    backbone = make_backbone(memory_length=20)
    reader = SegmentReader(backbone, 3, 4)
    reader.begin()

    def add(hidden, others):
        return hidden + ops.cast(others, hidden.dtype)[..., None]

    texts = [TOKENS[0, :14], TOKENS[1, :6]]
    for begin, end in ((0, 5), (5, 14)):
        parts = [text[begin:end] for text in texts]
        found = reader.read_texts(add, parts, parts)
        for text, states in zip(texts, found, strict=True):
            expected, _ = backbone(text[None])
            expected = np.array(expected[0]) + text[:, None]
            np.testing.assert_allclose(states, expected[begin:end], atol=1e-5)
    assert [len(states) for states in found] == [9, 1]


LOW = {"dtype": "mixed_bfloat16"}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        *(({}, {"memory_length": n, "lengths": [4] * 7}) for n in (0, 1, 20)),
        *((s, {"lengths": (4, 3)}) for s in (VASWANI, AL_RFOU)),
        *(
            ({**LOW, **s}, {"atol": 0.1, "lengths": (4, 4, 1, 4)})
            for s in ({}, SHAW, AL_RFOU)
        ),
    ],
    ids=str,
)
def test_so_they_are_with_other_memories_and_dtypes(settings, options):
    check_states(make_backbone(**settings), **options)


@pytest.mark.parametrize("cold_start", ["masked", "zeros"])
def test_rows_are_forgotten_one_by_one(cold_start):
    backbone = make_backbone(cold_start=cold_start, normalize_first=True)
    for block in backbone.blocks:
        block._attention_norm.beta.assign(np.arange(D) / 10)
    resets = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
    check_states(backbone, [3] * 4, resets)


def test_the_number_of_rows_may_be_given_when_reading_begins():
    backbone = make_backbone()
    reader = SegmentReader(backbone, None, 4)
    for rows in (3, 2):
        reader.begin(rows=rows)
        assert reader.num_bytes == SegmentReader(backbone, rows, 4).num_bytes
        texts = TOKENS[: rows - 1, :6]
        found = reader.read_texts(lambda hidden, _: hidden, texts, texts)
        np.testing.assert_allclose(found, backbone(texts)[0], atol=1e-5)
    reader.begin(backbone.initial_memory(3))
    reader.read_texts(None, TOKENS[:3, :6])


@pytest.mark.parametrize(
    ("batch_size", "rows", "of_memory"),
    [(3, 2, None), (3, None, 2), (None, 3, 2), (None, None, None)],
)
def test_rows_that_differ_are_refused(batch_size, rows, of_memory):
    backbone = make_backbone()
    reader = SegmentReader(backbone, batch_size, 4)
    memory = of_memory and backbone.initial_memory(of_memory)
    with pytest.raises(ValueError, match=f"=.*rows={rows}, {of_memory} rows"):
        reader.begin(memory, rows)
    with pytest.raises(ValueError, match="since `begin`, None"):
        reader.read_texts(None, [range(3)])
    reader.begin(rows=3)
    with pytest.raises(ValueError, match="`begin`, 3. Received: 4 texts"):
        reader.read_texts(None, [range(3)] * 4)


@pytest.mark.tensorflow
def test_new_entries_are_written_in_place():
    backbone = make_backbone(memory_length=40)
    reader = SegmentReader(backbone, 3, 1)
    _, entries = reader.read(TOKENS[:, :1])

    @tf.function(jit_compile=True, autograph=False)
    def remember(entries):
        reader.remember(entries)

    program = remember.experimental_get_compiler_ir(entries)(
        stage="optimized_hlo"
    )
    assert program.count("f32[3,2,40,5]") > 4
    assert "f32[3,2,40,5]{3,2,1,0} copy(" not in program


@pytest.mark.parametrize(
    ("config", "sizes", "message"),
    [
        ({}, (0, 4, 4), "batch_size=0"),
        ({}, (1, 0, 4), "segment_length=0"),
        ({}, (1, 4, -1), "memory_length=-1"),
        (AL_RFOU, (1, 5), "segment_length=5, max_positions=4"),
        (VASWANI, (1, 4, 4), "memory_length=4"),
    ],
)
def test_sizes_that_cannot_be_are_refused(config, sizes, message):
    with pytest.raises(ValueError, match=message):
        SegmentReader(make_backbone(**config), *sizes)


def test_segments_that_are_too_long_are_refused():
    reader = SegmentReader(make_backbone(), 3, 4)
    with pytest.raises(ValueError, match="segment_length=4. Received: shape"):
        reader.read(TOKENS[:, :5])

import tensorflow as tf

from txl_keras.training.tensorboard import TensorBoard


def read(directory):
    """What lies in the event files, by name and step."""
    found = {}
    for path in sorted(directory.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                content = tf.make_ndarray(value.tensor)
                found[value.tag, event.step] = content.item()
    return found


def test_numbers_of_a_line_are_read_back(tmp_path):
    board = TensorBoard(str(tmp_path))
    board.write({"step": 20, "loss": 2.5, "note": "warm", "score": None})
    board.write({"step": 40, "loss": 1.5, "valid": {"nll": 1.25, "tokens": 7}})
    # Flushed: they are there while the run goes on.
    assert read(tmp_path) == {
        ("loss", 20): 2.5,
        ("loss", 40): 1.5,
        ("valid/nll", 40): 1.25,
        ("valid/tokens", 40): 7.0,
    }


def test_a_text_is_shown_as_it_stands(tmp_path):
    board = TensorBoard(str(tmp_path))
    board.write_text("sample", "= Title =\n\n  two *words*\n", step=9)
    # Four spaces make it code to Markdown, an empty line too.
    assert read(tmp_path) == {
        ("sample", 9): b"    = Title =\n    \n      two *words*\n"
    }


def test_a_worker_without_a_directory_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    board = TensorBoard(None)
    board.write({"step": 20, "loss": 2.5})
    board.write_text("sample", "text", step=9)
    assert not list(tmp_path.iterdir())

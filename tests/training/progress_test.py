import tensorflow as tf

from txl_keras.training import progress
from txl_keras.training.progress import TensorBoard


def test_without_a_terminal_there_is_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = progress.Progress(100, lambda nll, split: f"{2 * nll} of {split}")
    shown.update(10)  # a run that resumes
    for step in range(15, 36, 5):
        now[0] += 25
        shown.report({"step": step, "loss": 1.5, "tokens_per_second": 12.8})
    shown.score(35, 1.25, is_best=True)
    shown.close()
    # After 75 s, which 15 steps took; the next would come after 135 s.
    line = "25% 25/100 [01:15<06:15,  5.00s/step, tokens/s=13, loss=1.500, "
    assert capsys.readouterr() == (
        f" {line}train=3.0 of train]\nstep 35: valid 2.5 of valid (best)\n",
        "",
    )


def test_a_log_has_one_line_for_a_sample(capsys):
    shown = progress.Progress(9, lambda nll, _: str(nll))
    shown.sample(4, "to be\n\n  or\x1b[2J\tnot")
    shown.sample(8, "é" * 999)
    lines = capsys.readouterr().out.splitlines()
    # Without what would clear the screen.
    assert lines[0] == "step 4: sample: to be or\ufffd[2J not"
    assert lines[1] == f"step 8: sample: {'é' * 200}..."
    assert len(lines) == 2


def test_a_terminal_shows_all_lines_of_a_sample(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = progress.Progress(9, lambda nll, _: str(nll))
    shown.update(3)
    shown.report({"step": 4, "loss": 1.5, "tokens_per_second": 12.8})
    shown.sample(4, "to be\n  or\x07 not\n")
    shown.close()
    out, err = capsys.readouterr()
    assert "to be\n  or\ufffd not\n" in out
    assert "4/9" in err and "loss=1.500" in err and "tokens/s=13" in err


def read(directory):
    """Returns what lies in the event files, by name and step."""
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

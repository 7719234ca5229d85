"""Checks the progress that scripts show."""

from txl_keras.scripts import progress_bar as module
from txl_keras.scripts.progress_bar import progress_bar


def test_without_a_terminal_there_is_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with progress_bar(100, "segment", "memory") as on_progress:
        for done in range(50, 75, 5):  # a run that resumes
            on_progress(done, 100)
            now[0] += 25
    # After 75 s, which 15 segments took; the next would come after 135 s.
    assert capsys.readouterr() == (
        "",
        "memory:  65% 65/100 [01:15<02:55,  5.00s/segment]\n",
    )

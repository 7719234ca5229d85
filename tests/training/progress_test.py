import re

from txl_keras.training import progress


def test_without_a_terminal_there_is_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = progress.Progress(step=10, max_steps=100, tokens_per_step=64)
    for _ in range(5):
        now[0] += 25
        shown.update(5, seconds=25, loss=1.5, score="2.164 bpc")
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1  # after 75 s; the next would come after 135 s
    assert re.fullmatch(
        r"step 25/100: loss 1\.500, score 2\.164 bpc, tokens/s 13, 06:15 left",
        lines[0],
    )

"""Times that are known, so that what is made of them is."""

import pytest

from benchmarks import turns
from benchmarks.turns import CannotRunError
from benchmarks.turns import take_turns


def test_turns_go_around_and_the_first_does_not_count(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(turns.time, "perf_counter", lambda: clock[0])

    def contender(name, first, later):
        def turn():
            clock[0] += later if name in order else first
            order.append(name)
            return [later / 4, later * 3 / 4]

        return turn

    times = take_turns(
        {"a": contender("a", 7.0, 2.0), "b": contender("b", 3.0, 4.0)}, 2
    )
    assert order == ["a", "b"] * 3
    assert times.seconds == {"a": 1.0, "b": 2.0}
    assert times.spread == {"a": [0.5, 1.5], "b": [1.0, 3.0]}
    assert times.compile_seconds == {"a": 5.0, "b": 0.0}


def test_who_cannot_run_is_left_out(capsys):
    def fail():
        raise CannotRunError("no compiler")

    times = take_turns({"a": fail, "b": lambda: [1.0]}, 3)
    assert list(times.seconds) == ["b"]
    assert "Skipping a, which cannot run" in capsys.readouterr().out
    with pytest.raises(ValueError, match="`contenders` must include one"):
        take_turns({"a": fail}, 3)

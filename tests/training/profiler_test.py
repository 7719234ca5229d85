import pytest
import tensorflow as tf

from txl_keras.training.profiler import Profile


def traces(directory):
    return list(directory.glob("plugins/profile/*/*.xplane.pb"))


def boundaries(profile, step, max_steps):
    """The steps at which a loop of executions of up to 20 steps ends them."""
    while step < max_steps:
        boundary = profile.next_boundary(step) or max_steps
        step = min(step + 20, boundary, max_steps)
        yield step


def test_executions_end_where_a_trace_begins_and_ends():
    profile = Profile("unused", "25,33")
    assert list(boundaries(profile, 0, 60)) == [20, 25, 33, 53, 60]
    assert list(boundaries(profile, 29, 60)) == [33, 53, 60]
    assert list(boundaries(profile, 33, 60)) == [53, 60]
    assert list(boundaries(Profile("unused"), 0, 60)) == [20, 40, 60]


def test_the_steps_between_are_traced(tmp_path):
    profile = Profile(str(tmp_path), "4,7")
    for step in (0, 3):
        profile.update(step)
    assert not tmp_path.exists() or not traces(tmp_path)
    profile.update(4)
    profile.update(5)
    tf.linalg.matmul(tf.ones((3, 4)), tf.ones((4, 5)))
    assert not traces(tmp_path)
    profile.update(7)
    (trace,) = traces(tmp_path)
    assert b"MatMul" in trace.read_bytes()
    profile.update(8)
    profile.close()
    assert len(traces(tmp_path)) == 1
    # A run that resumed between the two and ends early leaves its trace.
    profile = Profile(str(tmp_path / "early"), "4,7")
    profile.update(5)
    profile.close()
    assert len(traces(tmp_path / "early")) == 1


@pytest.mark.parametrize(
    "steps", ["", "100", "110,100", "100,100", "1,2,3", "a,b", "-1,5", "1.5,2"]
)
def test_steps_must_be_two_and_rise(steps):
    with pytest.raises(ValueError, match=f"profile_steps='{steps}'"):
        Profile("unused", steps)


def test_a_trace_after_the_last_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'5,13', max_steps=12"):
        Profile(str(tmp_path), "5,13", max_steps=12)

import pytest

from txl_keras.training.workdir import Workdir

CONFIG = {
    "flags": {"seed": 1},
    "model": {},
    "data": {"sizes": (3, 4)},
    "corpus": {"name": "here"},
}


def test_a_run_of_the_same_configuration_goes_on(tmp_path):
    workdir = Workdir(str(tmp_path / "run"))
    workdir.claim(CONFIG)
    workdir.claim(CONFIG)
    assert workdir.read_config()["data"] == {"sizes": [3, 4]}


def test_another_configuration_is_refused_and_changes_nothing(tmp_path):
    workdir = Workdir(str(tmp_path))
    workdir.claim(CONFIG)
    other = {**CONFIG, "flags": {"seed": 2}}
    with pytest.raises(ValueError, match="flags.seed was 1, now 2"):
        workdir.claim(other)
    assert workdir.read_config()["flags"]["seed"] == 1


def test_the_text_may_lie_elsewhere_when_a_run_goes_on(tmp_path):
    workdir = Workdir(str(tmp_path))
    workdir.claim(CONFIG)
    workdir.claim({**CONFIG, "corpus": {"name": "there"}})
    assert workdir.read_config()["corpus"] == {"name": "here"}


@pytest.mark.parametrize("content", ["", "{}", '{"flags": '])
def test_a_damaged_configuration_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="config.json is damaged"):
        Workdir(str(tmp_path)).claim(CONFIG)


def test_generation_remembers_at_least_a_segment(tmp_path):
    workdir = Workdir(str(tmp_path))
    backbone = {"config": {"memory_length": 0}}
    sizes = {"model": {"backbone": backbone}, "flags": {"segment_length": 6}}
    workdir.claim({**CONFIG, **sizes})
    assert workdir.generation_memory_length() == 6


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        Workdir(str(tmp_path)).read_config()


def test_metrics_after_the_resumed_step_are_forgotten(tmp_path):
    workdir = Workdir(str(tmp_path))
    for step in (10, 20, 30):
        workdir.append_metrics({"step": step})
    with open(workdir.metrics, "a") as file:
        file.write('{"step": 4')  # killed while writing
    workdir.drop_metrics_after(20)
    workdir.append_metrics({"step": 30, "again": True})
    assert workdir.read_metrics() == [
        {"step": 10},
        {"step": 20},
        {"step": 30, "again": True},
    ]

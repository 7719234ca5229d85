import numpy as np
import pytest

from txl_keras.training.run_plan import RunPlan
from txl_keras.training.schedules import build_schedule

STEPS = 40


def rates(schedule, steps):
    return np.array([float(schedule(step)) for step in steps])


@pytest.fixture(params=["cosine", "inverse_sqrt", "linear", "constant"])
def schedule(request):
    return build_schedule(request.param, 0.3, STEPS, warmup_steps=4)


def test_a_plan_that_is_kept_is_the_schedule(schedule):
    plan = RunPlan(schedule, STEPS)
    assert plan.last_step == STEPS
    for kind in (int, np.int64):
        steps = [kind(step) for step in range(STEPS + 3)]
        np.testing.assert_array_equal(
            rates(plan, steps), rates(schedule, steps)
        )


@pytest.mark.parametrize("last_step", [13, 31, 90])
def test_another_last_step_stretches_the_rest(schedule, last_step):
    plan = RunPlan(schedule, STEPS)
    plan.change(updates=11, step=12, last_step=last_step)  # one was skipped
    assert plan.last_step == last_step
    # No jump, and it ends where the schedule ends.
    assert float(plan(11)) == pytest.approx(float(schedule(11)))
    end = 11 + last_step - 12
    assert float(plan(end)) == pytest.approx(float(schedule(STEPS)), abs=1e-6)
    middle = 11 + (STEPS - 11) / 2
    assert float(plan(11 + (last_step - 12) / 2)) == pytest.approx(
        float(schedule(middle)), rel=1e-5
    )


def test_a_finished_run_goes_on_as_if_it_had_been_planned_so():
    plan = RunPlan(build_schedule("cosine", 0.3, STEPS), STEPS)
    assert float(plan(STEPS)) == pytest.approx(0, abs=1e-7)
    plan.change(STEPS, STEPS, last_step=100, begins_again=True)
    longer = build_schedule("cosine", 0.3, 100)
    steps = range(STEPS, 101)
    np.testing.assert_allclose(
        rates(plan, steps), rates(longer, steps), atol=1e-6
    )
    plan.change(70, 70, last_step=80)
    assert float(plan(70)) == pytest.approx(float(longer(70)))
    assert float(plan(80)) == pytest.approx(0, abs=1e-6)


def test_what_was_changed_is_in_the_variables():
    plan, other = (
        RunPlan(build_schedule("linear", 0.3, STEPS), STEPS) for _ in range(2)
    )
    plan.change(9, 9, last_step=20)
    for name, variable in other.variables.items():
        variable.assign(plan.variables[name])
    assert other.last_step == 20
    np.testing.assert_array_equal(
        rates(other, range(21)), rates(plan, range(21))
    )

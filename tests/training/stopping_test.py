import os
import signal
import time

import pytest
from script_runs import run_code

from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def is_heard(stop, seconds):
    end = time.monotonic() + seconds
    while stop.signal is None and time.monotonic() < end:
        time.sleep(0.01)
    return stop.signal is not None


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard_while_it_is_listened_to(
    number, heeded_signals, capfd
):
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop, stop.deferred():
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert is_heard(stop, 10)
    assert float(stop.variable) == 1.0
    assert stop.signal == number
    assert signal.getsignal(number) == before
    assert signal.set_wakeup_fd(-1) == -1
    told = capfd.readouterr().err
    assert f"\n{stop.signal.name}: finishing the step, then saving." in told


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_ignored_stays_so(number, heeded_signals):
    signal.signal(number, signal.SIG_IGN)
    stop = StopRequest()
    with stop, stop.deferred():
        os.kill(os.getpid(), number)
        assert not is_heard(stop, 0.2)
    assert signal.getsignal(number) == signal.SIG_IGN


def test_what_is_no_wish_to_stop_is_not_heard():
    stop = StopRequest()
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    try:
        with stop, stop.deferred():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not is_heard(stop, 0.2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == [1]
    assert float(stop.variable) == 0.0


def test_a_signal_ends_the_program_where_no_loop_looks_or_one_came_before():
    # Both in one program, of which each second is for imports. The child is
    # forked before TensorFlow starts threads.
    script = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from txl_keras.training.stopping import StopRequest
child = os.fork()
if not child:
    with StopRequest() as stop:
        with stop.deferred():
            pass
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(60)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
with StopRequest() as stop, stop.deferred():
    # A terminal that is closed sends two, and the system then one to end.
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        os.kill(os.getpid(), number)
        time.sleep(0.1)
    while stop.signal != number:
        time.sleep(0.1)
    os.kill(os.getpid(), number)
    time.sleep(60)
"""
    done = run_code(script)
    assert done.stdout == f"{EXIT_CODE}\n"
    assert done.returncode == 128 + signal.SIGTERM

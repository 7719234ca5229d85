import signal

import pytest
from script_runs import run_code

from txl_keras.training import stopping
from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_left_to_the_loop(number, heeded_signals, capfd):
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop, stop.deferred():
        assert stop.signal is None
        signal.raise_signal(number)
    assert stop.signal == number
    assert [signal.getsignal(n) for n in SIGNALS].count(signal.SIG_IGN) == 0
    assert signal.getsignal(number) == before
    name = signal.Signals(number).name
    told = capfd.readouterr().err
    assert f"\n{name}: finishing the steps of this call" in told


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_ignored_stays_so(number, heeded_signals):
    signal.signal(number, signal.SIG_IGN)
    stop = StopRequest()
    with stop, stop.deferred():
        signal.raise_signal(number)
    assert stop.signal is None
    assert signal.getsignal(number) == signal.SIG_IGN


def test_a_signal_ends_the_program_where_no_loop_looks_or_one_came_before():
    # Not by its name, which imports TensorFlow.
    script = """
import os, runpy, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
StopRequest = runpy.run_path(sys.argv[1])["StopRequest"]
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
    assert stop.signal == number
    os.kill(os.getpid(), number)
    time.sleep(60)
"""
    done = run_code(script, stopping.__file__)
    assert done.stdout == f"{EXIT_CODE}\n"
    assert done.returncode == -signal.SIGTERM

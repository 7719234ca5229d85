import os
import signal
import subprocess
import sys
import time

import pytest

from txl_keras.training.stopping import EXIT_CODE
from txl_keras.training.stopping import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_while_it_is_listened_to(number):
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop, stop.deferred():
        assert not stop.wait(0)
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert float(stop.variable) == 1.0
    assert stop.signal == number
    assert signal.getsignal(number) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_is_no_wish_to_stop_is_not_heard():
    stop = StopRequest()
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    try:
        with stop, stop.deferred():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not stop.wait(0.2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == [1]
    assert float(stop.variable) == 0.0


def test_a_signal_ends_the_program_where_no_loop_looks_or_one_came_before():
    # Both in one program, of which each second is for imports. The child is
    # forked before TensorFlow starts threads.
    script = """
import os, signal, time
from txl_keras.training.stopping import StopRequest
child = os.fork()
if not child:
    with StopRequest() as stop:
        with stop.deferred():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
with StopRequest() as stop, stop.deferred():
    print("ready", flush=True)
    stop.wait(60)
    print("heard", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout.readline().strip() == str(EXIT_CODE)
        for word in ("ready", "heard"):
            assert process.stdout.readline().strip() == word
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM

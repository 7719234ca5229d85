"""Calls loaders one after the other and prints what each call costs.

A program of its own, so that memory is that of the loaders alone and a bomb
takes no test with it. Its argument is the path of a JSON list of `[name of a
loader, arguments]`; it prints a JSON list of one dictionary per call.
"""

import ctypes
import json
import pathlib
import re
import resource
import sys

LIMIT = 8 << 30


def status(field):
    """Bytes that `/proc` reports: VmRSS is now, VmHWM the most ever."""
    text = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", text)[1])


def cost(loader, arguments):
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = status("VmRSS")
    error = None
    try:
        loader(*arguments)
    except Exception as raised:  # noqa: BLE001, which one is the answer
        error = [type(raised).__name__, str(raised)]
    return {"error": error, "bytes": status("VmHWM") - before}


def main():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    from txl_keras import checkpoints

    calls = pathlib.Path(sys.argv[1]).read_text()
    answers = []
    for name, arguments in json.loads(calls):
        load = getattr(checkpoints, name)
        answers.append(cost(load, arguments))
        print(json.dumps(answers[-1]), file=sys.stderr, flush=True)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()

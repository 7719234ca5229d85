"""Fixtures that tests of data share."""

import os

import pytest


@pytest.fixture(params=["pipe", "device", "folder"])
def not_a_file(request):
    """Returns a function that makes what is no file; it returns its kind."""

    def make(path):
        if request.param == "pipe":
            os.mkfifo(path)  # would be waited for
        elif request.param == "device":
            path.symlink_to("/dev/zero")  # has no end
        else:
            path.mkdir()
        return request.param

    return make

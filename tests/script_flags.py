"""The flags of the scripts in train/, without running them."""

import contextlib
import runpy

from absl import flags as absl_flags
from script_runs import TRAIN


@contextlib.contextmanager
def flags_of(script, *required):
    """Yields a function of flagfiles: the flags as they set them.

    Args:
        script: String, the name of a file in train/.
        *required: Arguments to be given besides.
    """
    known = set(absl_flags.FLAGS)
    runpy.run_path(str(TRAIN / script), run_name=script)

    def parse(*paths):
        absl_flags.FLAGS.unparse_flags()
        files = [f"--flagfile={path}" for path in paths]
        assert len(absl_flags.FLAGS([script, *required, *files])) == 1
        return absl_flags.FLAGS

    try:
        yield parse
    finally:
        # Others define flags of the same names.
        for name in set(absl_flags.FLAGS) - known:
            delattr(absl_flags.FLAGS, name)
        absl_flags.FLAGS.unparse_flags()

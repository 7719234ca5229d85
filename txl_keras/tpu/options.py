"""Options of `txl train` for TPUs."""

import sys

from txl_keras.scripts import options
from txl_keras.scripts.options import FLAGS
from txl_keras.tpu.slices import TYPES


class Compilation(options.Options):
    """Holds options of `--compile_only`.

    Device options:
    tpu_type: Type of the TPU slice that --compile_only compiles for, named as
        in gcloud.
    compile_only: Compile the training step for --tpu_type and report its time
        and memory, instead of training. Needs no TPU, no text and no
        --workdir.
    """

    tpu_type: options.one_of(TYPES) = None
    compile_only: bool = False

    @classmethod
    def begin(cls):
        """Compiles and exits if `--compile_only` is given."""
        is_for_tpu = FLAGS.compile_only or FLAGS.tpu is not None
        options.refuse(
            FLAGS.attention == "pallas" and not is_for_tpu,
            "`attention` can only be pallas with --tpu or --compile_only: "
            "other devices would interpret the kernel, which is slow.",
        )
        if FLAGS.compile_only:
            # Imported here because training does not need it.
            from txl_keras.tpu.command import compile_run

            sys.exit(0 if compile_run() else 1)

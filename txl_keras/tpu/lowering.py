"""Lowers the function of one of many replicas that do not exist."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


def lower(function, arguments, num_replicas):
    """Lowers a function of one of many replicas to a serialized HLO module."""
    # Only the shapes and dtypes of the arguments matter.
    # A new `tf.function`: a trace made outside of the context would be reused.
    step = tf.function(lambda *args: function(*args), jit_compile=True)
    with tf.device("CPU:0"), OneOfManyReplicas(num_replicas):
        compiler_ir = step.experimental_get_compiler_ir(*arguments)
        # HLO lowered for a GPU would call libraries of the GPU.
        return compiler_ir(stage="hlo_serialized", platform_name="CPU")


class OneOfManyReplicas(tf.distribute.ReplicaContext):
    """Traces the function of one replica as a part of a larger TPU slice."""

    # `all_reduce` lowers to XLA's all-reduce over all `num_replicas`. Functions
    # traced in this context are for compiling only; they cannot run here.

    def __init__(self, num_replicas):
        super().__init__(tf.distribute.get_strategy(), 0)
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self):
        return self._num_replicas

    @property
    def replica_id_in_sync_group(self):
        """Returns an int32 scalar that XLA sets to the id of each replica."""
        return tf.cast(gen_xla_ops.xla_replica_id(), tf.int32)

    def all_reduce(self, reduce_op, value, options=None):
        """Returns the sum over all replicas of every tensor in `value`."""
        assert reduce_op == "SUM"
        return tf.nest.map_structure(self._sum, value)

    def _sum(self, tensor):
        return gen_xla_ops.xla_all_reduce(
            input=tensor,
            group_assignment=[list(range(self._num_replicas))],
            reduce_op="Add",
            mode="CrossReplica",
        )

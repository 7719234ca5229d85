"""A replica context for tracing one of many replicas that do not exist yet."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


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
        if tf.distribute.ReduceOp(reduce_op) != tf.distribute.ReduceOp.SUM:
            raise ValueError(
                f"`reduce_op` must be SUM. Received: reduce_op={reduce_op}"
            )
        return tf.nest.map_structure(self._sum, value)

    def _sum(self, tensor):
        return gen_xla_ops.xla_all_reduce(
            input=tensor,
            group_assignment=[list(range(self._num_replicas))],
            reduce_op="Add",
            mode="CrossReplica",
        )

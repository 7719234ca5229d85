"""One replica of many, seen by the compiler and not yet there."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


class OneOfManyReplicas(tf.distribute.ReplicaContext):
    """A context in which a replica's function is traced for a TPU slice.

    In it `tf.distribute.get_replica_context()` is one of `num_replicas`, and
    `all_reduce` is XLA's instruction of that name, over all of them. What is
    traced is to be compiled for such a slice, not to be run here.

    Args:
        num_replicas: Integer.

    Example:

    ```python
    import tensorflow as tf

    from txl_keras.tpu.cross_replica import OneOfManyReplicas

    @tf.function(jit_compile=True)
    def add_up(x):
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", x)

    with OneOfManyReplicas(4):
        lower = add_up.experimental_get_compiler_ir(tf.zeros(3))
    assert "all-reduce" in lower(stage="hlo")
    ```
    """

    def __init__(self, num_replicas):
        super().__init__(tf.distribute.get_strategy(), 0)
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self):
        return self._num_replicas

    @property
    def replica_id_in_sync_group(self):
        """int32 scalar that is another on every replica."""
        return tf.cast(gen_xla_ops.xla_replica_id(), tf.int32)

    def all_reduce(self, reduce_op, value, options=None):
        """The sum over all replicas of every tensor in `value`."""
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

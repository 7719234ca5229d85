"""Memory that a served model keeps for its clients.

More letters: `W` entries to write.
"""

import math

import tensorflow as tf

from txl_keras.checks import check_shape_in_graph
from txl_keras.checks import check_token_ids
from txl_keras.checks import checked
from txl_keras.layers.kv_cache import ProjectedMemory
from txl_keras.layers.kv_cache import RingWrite
from txl_keras.serving.graph_writer import write_in_place


class Slots(tf.saved_model.experimental.TrackableResource):
    """Holds the signatures with memory in numbered slots; see `export`.

    Each slot is a ring buffer, one row of the variables. A call reads adjacent
    rows in place, and computes the few between its slots in vain. Otherwise it
    copies the rows of its slots. New entries are written in place, into rows
    that only this call uses. Scattering them would lock the variable and make
    each later read copy it.

    The variables are stored with no rows, because the memory of eight slots is
    often larger than the weights. A resource is initialized when the SavedModel
    is loaded, and then adds the rows.
    """

    def __init__(self, served, num_slots):
        super().__init__()
        self._served = served
        self._num_slots = num_slots
        self._memory = tf.nest.map_structure(
            lambda value: tf.Variable(
                value[:0], trainable=False, shape=(None, *value.shape[1:])
            ),
            self._empty(1),
        )

    @property
    def variables(self):
        """Returns the variables of the memory."""
        return tf.nest.flatten(self._memory)

    def _create_resource(self):
        # A dummy: only the initialization of the resource is used.
        return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=())

    def _destroy_resource(self):
        pass

    def _initialize(self):
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value),
            self._memory,
            self._empty(self._num_slots),
        )

    def _empty(self, num_rows):
        return self._served.from_tensors(self._served.empty(num_rows))

    def endpoints(self):
        """Returns a dictionary from names to functions and input specs."""
        slots = tf.TensorSpec((None,), tf.int32, "slots")
        ids = tf.TensorSpec((None, None), tf.int32, "ids")
        return {
            "step": (self.step, [ids, slots]),
            "reset": (self.reset, [slots]),
        }

    def reset(self, slots):
        """Resets slots to the initial memory."""
        slots = self._checked(slots)
        self._replace(slots, self._empty(tf.shape(slots)[0]))
        return {"slots": slots}

    def step(self, ids, slots):
        """Reads a segment in slots and predicts the token after its last."""
        slots = check_shape_in_graph("slots", slots, [tf.shape(ids)[0]])
        slots, ids = self._checked(slots), self._served.check_segment(ids)
        # All checks come before anything is written.
        with tf.control_dependencies([ids]):
            past, num_rows, places = self._read(slots, tf.shape(ids)[1])
        # Rows of other slots read the id 0.
        shape = num_rows, tf.shape(ids)[1]
        ids = tf.scatter_nd(places[:, None], ids, shape)
        hidden, *entries = self._served.read(ids, past)
        hidden, entries = tf.nest.map_structure(
            lambda x: tf.gather(x, places), (hidden[:, -1], entries)
        )
        log_probs = self._served.model.softmax.log_probs(hidden)
        # Memory is written after everything that reads it or may fail.
        with tf.control_dependencies([log_probs, *tf.nest.flatten(entries)]):
            if isinstance(past, ProjectedMemory):
                self._write(slots, past, places, *entries)
            else:
                past = self._served.backbone.append(past, entries)
                with tf.control_dependencies(tf.nest.flatten(past)):
                    self._replace(slots, past)
        return {"log_probs": log_probs}

    def _checked(self, slots):
        slots = check_token_ids("slots", slots, self._num_slots)
        return checked(
            slots,
            tf.size(tf.unique(slots)[0]) == tf.size(slots),
            "`slots` must not contain a number twice. Received:",
            slots,
        )

    def _read(self, slots, length):
        """Returns rows with the slots, their number, and the slots' places."""
        values = [variable.read_value() for variable in self.variables]
        size, own = tf.size(slots), tf.range(tf.size(slots))
        first = tf.reduce_min(slots)
        number = tf.reduce_max(slots) - first + 1
        if isinstance(self._memory, ProjectedMemory):
            # Measured: three rows are copied while a token of one is computed.
            is_range = 3 * (number - size) * length <= size
        else:  # whose rows are written again, as they were read
            is_range = tf.reduce_all(slots == first + own)
        is_range &= size > 0
        rows, number, places = tf.cond(
            is_range,
            # Along the first axis, which copies nothing.
            lambda: (
                [value[first : first + number] for value in values],
                number,
                slots - first,
            ),
            lambda: ([tf.gather(value, slots) for value in values], size, own),
        )
        return tf.nest.pack_sequence_as(self._memory, rows), number, places

    def _replace(self, slots, memory):
        """Writes whole rows."""
        written, counts = [], []
        for variable, rows in zip(
            self.variables, tf.nest.flatten(memory), strict=True
        ):
            size = math.prod(rows.shape[1:])
            if rows.shape.rank == 1:
                counts.append((variable, rows))
            elif size:
                state = tf.reshape(variable, (-1, size))
                rows = tf.reshape(rows, (-1, size))
                written.append(write_in_place(state, slots, rows))
        _scatter(counts, slots, written)

    def _write(self, slots, past, places, keys, values):
        """Writes the last W = min(T, M) entries to the ring buffers."""
        num_new, length = tf.shape(keys[0])[2], past.length
        valid_length = tf.gather(past.valid_length, places)
        valid_length = tf.minimum(valid_length + num_new, length)
        counts = [(self._memory.valid_length, valid_length)]
        written = []
        if length:
            next_slot = tf.gather(past.next_slot, places)
            ring = RingWrite(next_slot, length, keys[0], rows=slots)
            next_slot = tf.math.floormod(next_slot + num_new, length)
            counts.append((self._memory.next_slot, next_slot))
            for variable, entries in zip(
                self._memory.keys + self._memory.values,
                keys + values,
                strict=True,
            ):
                # The value that was read shares its memory with the variable.
                state, new = variable.read_value(), ring.values(entries)
                written.append(write_in_place(state, ring.flat_indices, new))
        _scatter(counts, slots, written)


def _scatter(counts, slots, written):
    """Writes variables `(num_slots,)` after the writes in place."""
    # Unlike writes in place, these are stateful operations: a `tf.function`
    # executes them before its next call, even if it ignores the results.
    with tf.control_dependencies(written):
        for variable, values in counts:
            variable.scatter_nd_update(slots[:, None], values)

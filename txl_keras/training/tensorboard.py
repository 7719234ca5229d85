"""TensorBoard files of a run."""

import textwrap

import keras
import tensorflow as tf


class TensorBoard:
    """Writes scalars and text for TensorBoard, if there is a `directory`."""

    def __init__(self, directory):
        if not directory:
            self._writer = tf.summary.create_noop_writer()
            return
        self._writer = tf.summary.create_file_writer(directory)

    def write(self, metrics):
        """Writes the numbers of a line of metrics.jsonl, which has a `step`."""
        with self._writer.as_default(step=metrics["step"]):
            for path, value in keras.tree.flatten_with_path(metrics):
                if path != ("step",) and isinstance(value, (int, float)):
                    tf.summary.scalar("/".join(map(str, path)), value)
        self._writer.flush()

    def write_text(self, name, text, step):
        """Writes a text, shown without formatting."""
        with self._writer.as_default():
            # TensorBoard renders Markdown, where this is a code block.
            block = textwrap.indent(text, "    ", lambda line: True)
            tf.summary.text(name, block, step)
        self._writer.flush()

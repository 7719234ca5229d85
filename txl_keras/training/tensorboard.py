"""TensorBoard files of a run."""

import textwrap

import tensorflow as tf


class TensorBoard:
    """Writes scalars and text for TensorBoard, unless `directory` is `None`."""

    def __init__(self, directory):
        if directory is None:
            self._writer = tf.summary.create_noop_writer()
            return
        self._writer = tf.summary.create_file_writer(directory)

    def write(self, metrics):
        """Writes the numbers of a line of metrics.jsonl, which has a `step`."""
        with self._writer.as_default(step=metrics["step"]):
            for name, value in _flatten(metrics):
                if name != "step":
                    tf.summary.scalar(name, value)
        self._writer.flush()

    def write_text(self, name, text, step):
        """Writes a text, shown without formatting."""
        with self._writer.as_default():
            # TensorBoard renders Markdown, where this is a code block.
            block = textwrap.indent(text, "    ", lambda line: True)
            tf.summary.text(name, block, step)
        self._writer.flush()

    def close(self):
        """Closes the file."""
        self._writer.close()


def _flatten(metrics, prefix=""):
    """Yields pairs of name and number."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            yield prefix + name, value

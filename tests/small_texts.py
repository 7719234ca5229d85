import numpy as np
import tensorflow_datasets as tfds


class SmallTexts(tfds.core.GeneratorBasedBuilder):
    """Texts of one line, in splits and features that a test may choose."""

    VERSION = tfds.core.Version("2.0.0")
    SPLITS = {"train": 30, "validation": 3, "test": 4}
    KEYS = ("text",)

    def _info(self):
        features = {key: tfds.features.Text() for key in self.KEYS}
        features["number"] = np.int64
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {
            split: self._generate_examples(split, size)
            for split, size in self.SPLITS.items()
        }

    def _generate_examples(self, split, size):
        for i in range(size):
            texts = {key: f"{key} {split} {i}" for key in self.KEYS}
            yield i, {**texts, "number": i}

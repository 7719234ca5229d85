"""Same-layer recurrence: a block remembers its outputs, not its inputs."""

import keras

from txl_keras.extending import register
from txl_keras.models.transformer_xl_backbone import TransformerXLBackbone

__all__ = ["SameLayerBackbone"]


@keras.saving.register_keras_serializable(package="txl_keras")
class SameLayerBackbone(TransformerXLBackbone):
    """Encodes text like Transformer-XL, with a memory of the blocks' outputs.

    This is the same-layer recurrence of ERNIE-Doc (Ding et al., 2021, section
    3.2). A token can depend on all earlier segments. But scores depend on how a
    text is cut into segments, and weights trained with a memory of inputs do
    not fit.

    Args:
        *args, **kwargs: Arguments of `TransformerXLBackbone`.

    Example:

    ```python
    from txl_keras.extensions.same_layer import SameLayerBackbone
    from txl_keras.models import TransformerXLCausalLM

    backbone = SameLayerBackbone.from_preset("quickstart", num_layers=2)
    model = TransformerXLCausalLM(backbone)
    ```

    Reference:
        [Ding et al., 2021](https://arxiv.org/abs/2012.15688).
    """

    has_finite_reach = False

    def remember(self, memory, states, lengths=None, training=False):
        return memory.extend(states[1:], lengths)

    def entries(self, states, keys, values):
        projected = [
            block.project(outputs)
            for block, outputs in zip(self.blocks, states[1:], strict=True)
        ]
        return tuple(zip(*projected, strict=True))


register("backbone", same_layer=SameLayerBackbone)

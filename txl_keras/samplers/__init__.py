"""Ways to choose the next tokens of a text.

```python
import txl_keras.keras_without_log  # noqa: F401
from txl_keras import samplers
from txl_keras.models import TransformerXLCausalLM

model = TransformerXLCausalLM.from_preset("quickstart", num_layers=1)
model.compile(sampler="top_k")  # by name
model.compile(sampler=samplers.Sampler(temperature=0.8, top_p=0.95))
```
"""

from txl_keras.samplers.sampler import BeamSampler
from txl_keras.samplers.sampler import Sampler
from txl_keras.samplers.sampler import get

__all__ = ["BeamSampler", "Sampler", "get"]

"""What is not the paper's Transformer-XL: nothing else imports it.

Each module registers what it adds, see `txl_keras.extending`.
"""

import txl_keras.needs_tensorflow  # noqa: F401

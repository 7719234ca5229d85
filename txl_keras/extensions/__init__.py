"""Extensions of the paper's Transformer-XL; nothing else imports them.

Each module registers its additions, see `txl_keras.extending`.
"""

import txl_keras.needs_tensorflow  # noqa: F401

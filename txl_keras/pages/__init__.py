"""Web pages: how surprising a text is, and the playground of `txl demo`."""

import txl_keras.keras_without_log  # noqa: F401
from txl_keras.extending import register
from txl_keras.pages.surprise import SurpriseReader
from txl_keras.pages.surprise import surprise_page

__all__ = ["surprise_page"]

register("page", surprise=SurpriseReader)

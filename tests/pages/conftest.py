"""A model whose pages all tests of them show, and a browser."""

import shutil

import pytest
from factories import byte_model
from factories import seed_weights

from txl_keras.pages.playground import Playground
from txl_keras.pages.surprise import SurpriseReader


@pytest.fixture(scope="session")
def model():
    seed_weights(3)
    # Large weights, so that the tokens before matter.
    return byte_model(memory_length=9, initializer_stddev=0.5)


@pytest.fixture(scope="session")
def playground(model):
    return Playground(model, segment_length=7)


@pytest.fixture(scope="session")
def reader(model):
    return SurpriseReader(model, segment_length=7)


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window, driven by Selenium; skips where it lacks."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("there is no Chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "no-first-run",
        "disable-background-networking", "disable-component-update",
        "disable-sync", "window-size=900,700",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(params=["light", "dark"])
def scheme(browser, request):
    """Colours that the browser asks pages for."""
    scheme = {"name": "prefers-color-scheme", "value": request.param}
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [scheme]}
    )
    return request.param

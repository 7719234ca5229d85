"""The configs of experiments beyond the paper, with models of extensions."""

import pytest
from conformance import configs_test

parse = configs_test.parse
BEYOND = sorted(configs_test.CONFIGS.glob("beyond/*.flags"))


@pytest.mark.parametrize("path", BEYOND, ids=lambda path: path.stem)
def test_a_config_does_not_depend_on_what_may_become_another_default(
    path, parse
):
    configs_test.test_a_config_does_not_depend_on_what_may_become_another_default(
        f"beyond/{path.stem}", parse
    )

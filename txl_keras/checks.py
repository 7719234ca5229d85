"""Checks of arguments."""

import numbers


def check_integer(name, value, minimum):
    """Checks that an argument is an integer and not too small.

    Args:
        name: String, the argument's name.
        value: What was passed.
        minimum: Integer.

    Returns:
        The value, as a Python integer.

    Raises:
        ValueError: If it is no integer (booleans are none) or too small.
    """
    is_integer = isinstance(value, numbers.Integral)
    if not is_integer or isinstance(value, bool) or value < minimum:
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}. "
            f"Received: {name}={value!r}"
        )
    return int(value)

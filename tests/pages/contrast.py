"""Contrast of colours, as WCAG 2 defines it."""


def contrast(*colors):
    """Returns the contrast ratio of two colours `rgb(r, g, b)`."""
    light, dark = sorted(map(luminance, colors), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_contrast(pairs):
    """Checks that pairs of colours satisfy WCAG 2, level AA."""
    for pair in pairs:
        assert contrast(*pair) > 4.5, pair


def luminance(color):
    """Returns the relative luminance of `rgb(r, g, b)`, from 0 to 1."""
    parts = [int(part) / 255 for part in color[4:-1].split(",")]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

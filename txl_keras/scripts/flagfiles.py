"""Flagfiles by path, or by the name of one that comes with the scripts."""

import pathlib
import re

_FLAGFILE = re.compile("--?flagfile(?:=(.*))?", re.DOTALL)
# Where a flagfile is looked for, from the folder that holds train/.
_PLACES = (
    "{}",
    "train/configs/{}.flags",
    "train/configs/{}",
    "tpu_configs/{}.flags",
    "tpu_configs/{}",
)


def expand_flagfiles(arguments, home):
    """Yields arguments with the flags of each `--flagfile` in its place."""
    # In contrast to absl, a flagfile that is not in the current folder may be
    # one in `home`, the folder that holds train/ and tpu_configs/.
    arguments = iter(arguments)
    for argument in arguments:
        match = _FLAGFILE.fullmatch(argument)
        if not match:
            yield argument
            if argument == "--":  # what follows are no flags
                yield from arguments
            continue
        name = match[1] if match[1] is not None else next(arguments, "")
        text = _find(name, pathlib.Path(home)).read_text("utf-8")
        lines = map(str.strip, text.splitlines())
        flags = [x for x in lines if x and not x.startswith(("#", "//"))]
        yield from expand_flagfiles(flags, home)


def _find(name, home):
    path = pathlib.Path(name.strip()).expanduser()
    places = [path, *(home / place.format(path) for place in _PLACES)]
    for place in places:
        if place.is_file():
            return place
    configs = [*home.glob("train/configs/*.flags")]
    raise ValueError(
        "`flagfile` must be the path of a file of flags, or the name of one "
        f"of {', '.join(sorted(path.stem for path in configs))}. Received: "
        f"--flagfile={name}"
    )

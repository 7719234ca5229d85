"""Checks of the numbers of pictures, which come from JSON files."""

from txl_keras.json_files import check_fields

_UNIT = {"unit": "a string"}
_SEGMENT = {"segment_length": "an integer"}
# Of each picture the fields of a file, and those of each of its models.
_FIELDS = {
    "learning_curves": (
        _UNIT,
        {
            "tokens_per_step": "an integer",
            "train.steps": "a list of integers",
            "train.nll": "a list of numbers",
            "valid.steps": "a list of integers",
            "valid.nll": "a list of numbers",
        },
    ),
    "context_losses": (
        {**_UNIT, "context_lengths": "a list of integers"},
        {"nll": "a list of numbers"},
    ),
    "memory_lengths": (
        {**_UNIT, "memory_lengths": "a list of integers"},
        {"nll": "a list of numbers"},
    ),
    "positions": (
        _UNIT,
        {
            "nll": "a list of numbers",
            "standard_error": "a list of numbers",
            "num_tokens": "a list of integers",
        },
    ),
    "attention": (
        _UNIT,
        {
            "layers": "a list of integers",
            "heads": "a list of integers",
            "tokens": "a list of strings",
        },
    ),
    "attention_by_distance": (
        _UNIT,
        {
            **_SEGMENT,
            "layers": "a list of integers",
            "attention": "a list of lists of numbers",
        },
    ),
    "recl": (_UNIT, {"recl": "a list of objects"}),
    "recall": (
        {**_SEGMENT, "chance": "a number"},
        {
            "label": "a string",
            "start": "a list of integers",
            "stop": "a list of integers",
            "accuracy": "a list of numbers",
        },
    ),
}
# Fields that a model may lack.
_OPTIONAL = {
    "label": "a string",  # then --labels or the workdir is its name
    "workdir": "a string",
    "test": "an object",
    "attended": "a list of numbers",
}
# Lists that have as many items as each other. The first must not be empty,
# unless a run may be without validation.
_EQUALLY_LONG = {
    "learning_curves": [("train.steps", "train.nll"),
                        ("valid.steps", "valid.nll")],
    "context_losses": [("context_lengths", "nll")],
    "memory_lengths": [("memory_lengths", "nll")],
    "positions": [("num_tokens", "nll", "standard_error")],
    "attention": [("layers",), ("heads",), ("tokens",)],
    "attention_by_distance": [("layers", "attention")],
    "recl": [("recl",)],
    "recall": [("start", "stop", "accuracy", "attended")],
}  # fmt: skip
_POSITIVE = {"segment_length", "tokens_per_step", "num_tokens"}
_LENGTHS = {"context_lengths", "memory_lengths"}
_BOUNDS = (None, "lower", "upper")


def check_numbers(numbers, picture, path):
    """Raises `ValueError` unless the numbers of a picture can be drawn."""
    of_file, of_model = _FIELDS[picture]
    try:
        check_fields(numbers, {**of_file, "models": "a list of objects"}, path)
        if not numbers["models"]:
            raise _error(path, "models", "a list of one or more", [])
        _check_values(numbers, of_file, path)
        for i, model in enumerate(numbers["models"]):
            source = f"{path}, models[{i}],"
            optional = {n: _OPTIONAL[n] for n in model.keys() & _OPTIONAL}
            check_fields(model, {**optional, **of_model}, source)
            if "label" not in model and "workdir" not in model:
                raise _error(source, "label", "a string", None)
            _check_values(model, of_model, source)
            _check_model(model, numbers, picture, source)
    except ValueError as error:
        raise ValueError(
            f"{error}. `numbers` must be the JSON file of a picture of "
            f"{picture}: bring it back as it was written, or measure again"
        ) from error


def _check_model(model, numbers, picture, source):
    """Checks what fields of a model have to do with each other."""
    for names in _EQUALLY_LONG[picture]:
        lists = [_field({**numbers, **model}, name) for name in names]
        length = len(lists[0])
        if not length and picture != "learning_curves":
            raise _error(source, names[0], "a list of one or more", [])
        for name, values in zip(names, lists, strict=True):
            if values is not None and len(values) != length:
                expected = f"{length} items, as many as `{names[0]}`"
                raise _error(source, name, expected, f"{len(values)} items")
    if picture == "learning_curves" and "test" in model:
        check_fields(model, {"test.nll": "a number"}, source)
    if picture == "attention_by_distance":
        _check_rows(model["attention"], source)
    if picture == "recl":
        _check_recl(model["recl"], numbers["models"][0]["recl"], source)
    if picture == "recall" and "reach" in model:
        check_fields(model, {"reach": "an integer"}, source)


def _check_values(content, fields, source):
    """Checks the fields that have the same limits in all pictures."""
    for name in fields.keys() & _POSITIVE:
        values = content[name]
        least = min(values, default=1) if isinstance(values, list) else values
        if least < 1:
            raise _error(source, name, "positive", least)
    for name in fields.keys() & _LENGTHS:
        values = content[name]
        if values != sorted(values) or not min(values, default=0) >= 0:
            raise _error(source, name, "ascending from at least 0", values)
        if not any(values):
            raise _error(source, name, "above 0 at the end", values)


def _check_rows(rows, source):
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or 0 in lengths:
        raise _error(
            source, "attention", "lists of one length", sorted(lengths)
        )


def _check_recl(results, of_first, source):
    """Checks the results of a model, which are for the same `top_r` in all."""
    fields = {
        "top_r": "a number",
        "recl": "an integer",
        "bound": "a string or null",
    }
    for result in results:
        check_fields(result, fields, f"{source} recl")
        if result.get("bound", "") not in _BOUNDS:
            received = result.get("bound", "no such field")
            raise _error(source, "recl.bound", "lower, upper or null", received)
    shares, expected = (
        [result.get("top_r") for result in of_one]
        for of_one in (results, of_first)
    )
    if shares != expected:
        raise _error(source, "recl.top_r", f"{expected} in all models", shares)


def _field(content, path):
    for name in path.split("."):
        content = content.get(name)
    return content


def _error(source, name, expected, received):
    return ValueError(
        f"{source} is damaged: its field `{name}` must be {expected}. "
        f"Received: {received}"
    )

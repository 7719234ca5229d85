"""Tables that developers' scripts write into guides."""

import re


def table(columns, rows):
    """Returns the Markdown of a table."""
    lines = columns, ["---"] * len(columns), *rows
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def replace(path, contents):
    """Replaces what a guide has between `<!-- NAME -->` and its end."""
    text = path.read_text("utf-8")
    for name, content in contents.items():
        text, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)",
            lambda match, content=content: f"{match[1]}{content}{match[2]}",
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(
                f"{path} must have exactly one pair of <!-- {name} --> and "
                f"<!-- end of {name} -->. Received: {count}"
            )
    path.write_text(text, "utf-8")

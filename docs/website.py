"""Writes the pages and settings that a website is built from.

    pip install -e ".[docs]"
    python docs/website.py  # writes build/pages and build/mkdocs.yml
    mkdocs build --strict -f build/mkdocs.yml  # writes build/site

The guides are written for readers of the repository: they link to files outside
docs/, and their formulas are LaTeX. A link to a file that does not exist stays
as it is, so that MkDocs reports it.
"""

import argparse
import json
import pathlib
import posixpath
import re
import shutil

from latex2mathml.converter import convert

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TABLE = "docs/README.md"
# Pages that are not in docs/ or would be called README, by their names in the
# website.
_NAMES = {
    "README.md": "index.md",
    _TABLE: "guides.md",
    "tpu_configs/README.md": "tpu_configs.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_COPIED = (
    "docs/*.md",
    "docs/notebooks/*.ipynb",
    "docs/pictures/*",
    "train/configs/*/pictures/*",
)
_CAPITALS = {"api": "API", "lora": "LoRA", "xlnet": "XLNet"}
_ADDRESS = re.compile(r"^repo_url: (\S+)", re.MULTILINE)
_GROUP = re.compile(r"^\| \*\*(.+)\*\* \|")
_GUIDE = re.compile(r"^\| \[(.+?)\]\((.+?\.md)\)")
# Code is left as it is.
_PARTS = re.compile(
    r"^```.*?^```$|(?P<ticks>`+).+?(?P=ticks)"
    r"|(?P<mark>!?)\[(?P<text>[^\]]*)\]"
    r"\((?!http)(?P<path>[^)#]+)(?P<anchor>[^)]*)\)"
    r"|\$\$(?P<latex>.+?)\$\$",
    re.DOTALL | re.MULTILINE,
)


def main():
    parser = argparse.ArgumentParser(description="Writes pages for MkDocs.")
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        default=_ROOT / "build",
        help="folder to write to; its subfolder pages is replaced",
    )
    build = parser.parse_args().folder
    shutil.rmtree(build / "pages", ignore_errors=True)
    settings = (_ROOT / "docs/website.yml").read_text("utf-8")
    address = _ADDRESS.search(settings)
    names = _names()
    for source, name in names.items():
        path = build / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = (_ROOT / source).read_text("utf-8")
            text = _page(source, text, names, address and address[1])
            path.write_text(text, "utf-8")
        else:
            shutil.copyfile(_ROOT / source, path)
    # JSON is YAML.
    settings += f"nav: {json.dumps(_navigation(), indent=2)}\n"
    (build / "mkdocs.yml").write_text(settings, "utf-8")


def _names():
    """Returns the files of the website by their paths in the repository."""
    paths = [path for part in _COPIED for path in sorted(_ROOT.glob(part))]
    sources = [path.relative_to(_ROOT).as_posix() for path in paths]
    return {source: source.removeprefix("docs/") for source in sources} | _NAMES


def _navigation():
    """Returns the guides in the groups of the table in docs/README.md."""
    entries = [{"txl_keras": "index.md"}, {"Guides": "guides.md"}]
    for line in (_ROOT / _TABLE).read_text("utf-8").splitlines():
        if group := _GROUP.match(line):
            entries.append({group[1]: []})
        elif guide := _GUIDE.match(line):
            words = [_CAPITALS.get(word, word) for word in guide[1].split("_")]
            title = " ".join(words)
            (pages,) = entries[-1].values()
            pages.append({title[0].upper() + title[1:]: guide[2]})
    slices = {"TPU slices": "tpu_configs.md"}
    project = [slices, "contributing.md", "changelog.md"]
    return [*entries, {"Project": project}]


def _page(source, text, names, address):
    """Returns a page with its links as in the website, and MathML."""

    def replace(match):
        if match["latex"]:
            formula = convert(match["latex"], display="block")
            return f"\n\n<div>{formula}</div>\n"
        if match["path"] is None:
            return match[0]
        target = posixpath.join(posixpath.dirname(source), match["path"])
        target = posixpath.normpath(target)
        if target in names:
            folder = posixpath.dirname(names[source])
            link = posixpath.relpath(names[target], folder or ".")
        elif not (_ROOT / target).exists():
            return match[0]
        elif address:
            link = f"{address}/tree/HEAD/{target}"
        else:
            return match["text"]
        return f"{match['mark']}[{match['text']}]({link}{match['anchor']})"

    return _PARTS.sub(replace, text)


if __name__ == "__main__":
    main()

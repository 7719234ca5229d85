"""The website of the guides."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# What a browser loads by itself; links do not count.
_LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?https?:[^>]*>"
)


def build(folder):
    """Returns the process that built the site of the pages in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
    )


# 10 seconds. The links between files are checked by docs_test.py, too.
@pytest.mark.large
def test_the_site_has_all_guides_and_no_broken_link(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    script = ROOT / "docs" / "website.py"
    subprocess.run([sys.executable, script, "--folder", tmp_path], check=True)
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {
        path.parent.relative_to(tmp_path / "site").as_posix(): path.read_text()
        for path in (tmp_path / "site").rglob("index.html")
    }
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {".", "guides", "tpu_configs"} | guides - {"README"} <= set(pages)
    for name, page in pages.items():
        assert not _LOADED.findall(page), name  # no request to another host
    formulas = (ROOT / "docs" / "concepts.md").read_text("utf-8").count("$$")
    assert pages["concepts"].count("<math ") == formulas / 2 > 9
    picture = re.search(r'src="([^"]*positions.png)"', pages["concepts"])[1]
    assert (tmp_path / "site" / "concepts" / picture).resolve().is_file()

    page = tmp_path / "pages" / "keras.md"
    text = page.read_text("utf-8")
    for link in ("data.md#no-such-part", "no_such_page.md", "no_picture.png"):
        page.write_text(f"{text}\n[broken]({link})\n", "utf-8")
        done = build(tmp_path)
        assert done.returncode == 1 and link in done.stderr

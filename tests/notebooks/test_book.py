"""The book builds from the recorded results with warnings as errors, and every page can be read by everybody."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import yaml

from specstudy.catalog import load_profile, names_in, project_root
from specstudy.records.page import fields_page

ROOT = project_root()


class Page(HTMLParser):
    """What a test asks of a page: its images and its links."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "img":
            self.images.append(named)
        if tag == "a" and named.get("href"):
            self.links.append(named["href"] or "")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("book")
    command = [str(Path(sys.executable).parent / "jupyter-book"), "build", "-W", "-n", "--keep-going", "--path-output", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return out / "_build" / "html"


def pages_of_toc() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def test_toc_lists_what_exists_and_nothing_is_left_out() -> None:
    listed = set(pages_of_toc())
    there = {f"chapters/{path.stem}" for path in (ROOT / "chapters").glob("*.ipynb")} | {f"how-to/{path.stem}" for path in (ROOT / "how-to").glob("*.md")}
    assert there <= listed
    assert all((ROOT / f"{name}.md").is_file() or (ROOT / f"{name}.ipynb").is_file() for name in listed)


def test_every_chapter_of_a_profile_has_a_notebook() -> None:
    for name in names_in("profiles"):
        for chapter in load_profile(name).chapters:
            assert (ROOT / "chapters" / f"{chapter}.ipynb").is_file(), f"{name}: {chapter}"


def test_pages_are_built_with_evidence_and_alt_text(built: Path) -> None:
    for name in pages_of_toc():
        page = Page(built / f"{name}.html")
        for image in page.images:
            assert image.get("alt") is not None, f"{name}: an image without alt text"
        if name.startswith("chapters/"):
            assert "evidence: " in page.text
            figures = [image for image in page.images if (image.get("src") or "").startswith("data:image/png")]
            assert figures, f"{name} shows no figure"
            assert all(re.search(r"\d", image["alt"] or "") for image in figures), f"{name}: alt text without figures"


def test_internal_links_lead_somewhere(built: Path) -> None:
    for name in pages_of_toc():
        source = built / f"{name}.html"
        for link in Page(source).links:
            target = link.split("#")[0]
            if target and not re.match(r"[a-z]+:", target):
                assert (source.parent / target).exists(), f"{name} links to {link}"


def test_record_fields_page_is_fresh() -> None:
    assert (ROOT / "how-to" / "record-fields.md").read_text() == fields_page(), "run: make fields"


@pytest.mark.parametrize("path", sorted((ROOT / "chapters").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_executed_and_parameterised(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parameters = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert len(parameters) == 1
    assert all(f"{name} = " in parameters[0].source for name in ("profile", "mode", "results_dir"))
    assert all(cell.outputs for cell in code if cell is not parameters[0]), "run: make notebooks"
    assert not any(re.search(r"^\s*(for|while) |\bimport re\b", cell.source, re.M) for cell in code), "a chapter needs no loop; src/ lacks a function"

"""Execute the chapters in recorded mode and keep their outputs in place; nbval compares with them.

python scripts/execute_chapters.py
"""

from __future__ import annotations

import nbformat
from nbclient import NotebookClient

from specstudy.catalog import project_root


def main() -> None:
    """See the module's text."""
    for path in sorted((project_root() / "chapters").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, kernel_name="python3", timeout=120, record_timing=False, resources={"metadata": {"path": str(path.parent)}}).execute()
        notebook.metadata.pop("language_info", None)  # the interpreter's version, different on each machine
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main()

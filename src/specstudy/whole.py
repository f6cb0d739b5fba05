"""The whole study of one profile: chapters by papermill, then the book."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from specstudy.catalog import Profile, project_root
from specstudy.errors import ConfigError, StudyError
from specstudy.progress import duration_text

BUILD_GUESS_S = 40.0


def set_aside(folder: Path) -> None:
    """Rename a results folder; nothing measured is deleted."""
    if folder.exists():
        kept = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        folder.rename(kept)
        print(f"earlier results: {kept}")


def chapter_notebooks(profile: Profile) -> list[Path]:
    """The notebooks of a profile's chapters. Raises ConfigError for a chapter without one."""
    found = []
    for chapter in profile.chapters:
        path = project_root() / "chapters" / f"{chapter}.ipynb"
        if not path.is_file():
            raise ConfigError("chapters", chapter, f"a chapter with a notebook in {path.parent.name}/")
        found.append(path)
    return found


def run_chapters(profile: Profile, profile_arg: str, results_dir: Path) -> None:
    """Execute each chapter live, its progress on our standard output. Raises StudyError when one fails.

    The executed notebooks go to _build/live.
    """
    import papermill
    from nbclient.exceptions import CellExecutionError
    from papermill.exceptions import PapermillExecutionError

    notebooks = chapter_notebooks(profile)
    executed = project_root() / "_build" / "live"
    executed.mkdir(parents=True, exist_ok=True)
    for number, notebook in enumerate(notebooks, 1):
        print(f"== chapter {number} of {len(notebooks)}: {notebook.stem}", flush=True)
        began = time.monotonic()
        try:
            papermill.execute_notebook(
                notebook,
                executed / notebook.name,
                parameters={"mode": "live", "profile": profile_arg, "results_dir": str(results_dir)},
                cwd=project_root(),
                kernel_name="python3",
                progress_bar=False,
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
                stdout_file=sys.stdout,
            )
        except (PapermillExecutionError, CellExecutionError) as error:
            if getattr(error, "ename", "") == "KeyboardInterrupt":
                raise KeyboardInterrupt from None
            raise StudyError(f"{notebook.stem} failed: {getattr(error, 'ename', '')}: {getattr(error, 'evalue', error)}") from None
        print(f"== {notebook.stem}: done in {duration_text(time.monotonic() - began)}", flush=True)


def build_book(results_dir: Path) -> Path:
    """Build the book from the records in `results_dir`, warnings as errors, and give its first page.

    Raises StudyError with the builder's last lines if it fails.
    """
    root = project_root()
    print(f"== building the book (about {duration_text(BUILD_GUESS_S)})", flush=True)
    command = [str(Path(sys.executable).parent / "jupyter-book"), "build", "-W", "-n", "--keep-going", "--all", str(root)]
    environment = {**os.environ, "SPECSTUDY_RESULTS": str(results_dir)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    page = root / "_build" / "html" / "index.html"
    if done.returncode or not page.is_file():
        raise StudyError("the book doesn't build:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-30:]))
    return page

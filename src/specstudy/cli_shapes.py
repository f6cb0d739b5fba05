"""`specstudy shapes`: list the published architectures and write one as a folder that an engine loads without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from specstudy.catalog.load import names_in
from specstudy.catalog.shapes import load_shape
from specstudy.catalog.shapes_make import shape_folder, write_shape
from specstudy.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Published architectures to be served with random weights.")


@app.command("list")
def list_() -> None:
    """List the shapes and their sizes."""
    others = ("kind", "layers", "hidden", "vocabulary", "experts", "forms", "assumed")
    table = RichTable(
        Column("shape", no_wrap=True), *(Column(name, overflow="fold", min_width=min(len(name), 10)) for name in others), box=None, padding=(0, 1, 0, 0)
    )
    for name in names_in("shapes"):
        found = load_shape(name)
        sizes = found.architecture
        experts = "" if sizes.num_local_experts is None else f"{sizes.num_experts_per_tok} of {sizes.num_local_experts}"
        vocabulary = f"{sizes.vocab_size:,}" if sizes.draft_vocab_size in (None, sizes.vocab_size) else f"{sizes.draft_vocab_size:,} of {sizes.vocab_size:,}"
        row = [name, found.kind, str(sizes.num_hidden_layers), f"{sizes.hidden_size:,}", vocabulary, experts]
        table.add_row(*row, ", ".join(found.quantizations), ", ".join(found.assumed))
    Console().print(table)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="a name in data/shapes")],
    out: Annotated[Path | None, typer.Option(help="an empty or new folder; the user's cache by default")] = None,
    quantization: Annotated[str | None, typer.Option(help="one of the shape's forms; none: weights as the engine is told")] = None,
) -> None:
    """Write config.json and a tokenizer, to be served with `--load-format dummy`."""
    shape = load_shape(name)
    if out is None:
        print(shape_folder(shape, quantization))
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("out", str(out), "an empty or new folder")
    try:
        write_shape(shape, out, quantization)
    except OSError as error:
        for half in out.glob("*.json"):  # `out` was new or empty: what lies there is ours, and the next try wants it so
            half.unlink(missing_ok=True)
        raise ConfigError.unwritable("out", out, error) from error
    print(out)

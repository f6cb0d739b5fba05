"""`specstudy drafts train` and `specstudy drafts regenerate`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specstudy.catalog import load_target
from specstudy.catalog.paths import cache_dir, check_writable
from specstudy.errors import AssetError, ConfigError
from specstudy.progress import tell

if TYPE_CHECKING:  # it brings torch, which takes seconds
    from specstudy.drafts.pipeline import Order

DEFAULT_TARGET = "smollm2-135m-instruct"
MethodOption = Annotated[str, typer.Option(help="eagle3, eagle3.1 or peagle")]
TargetOption = Annotated[str, typer.Option(help="a name in data/targets")]
DataOption = Annotated[list[str], typer.Option(help="sharegpt, python, or a JSONL file of your own; may be given several times")]
WorkOption = Annotated[Path | None, typer.Option(help="answers and checkpoints, kept between runs; by default in the cache")]
SettingOption = Annotated[str, typer.Option(help="full: minutes on one large GPU; tiny: a few minutes on two cores, to see that it works")]
PromptsOption = Annotated[int | None, typer.Option(min=2, help="take no more training prompts than this")]
LongOption = Annotated[int | None, typer.Option(min=1, help="take no more long prompts than this, those that need long rows")]
RowOption = Annotated[int | None, typer.Option(help="length of the rows of long prompts and their answers; full: 6,144")]


def train(
    method: MethodOption,
    out: Annotated[Path, typer.Option(help="folder of the trained head, a new one")],
    target: TargetOption = DEFAULT_TARGET,
    data: DataOption = ["sharegpt", "python"],  # noqa: B006
    work: WorkOption = None,
    setting: SettingOption = "full",
    start: Annotated[str | None, typer.Option("--from", help="train this head further: a name in data/drafts, or a head's folder")] = None,
    minutes: Annotated[float | None, typer.Option(help="training time, without the answers")] = None,
    steps: Annotated[int | None, typer.Option(help="end after this many steps")] = None,
    max_prompts: PromptsOption = None,
    learning_rate: Annotated[float | None, typer.Option(help="its peak; a warm-up before it, a straight line to zero behind it")] = None,
    depth_weight: Annotated[float | None, typer.Option(help="loss weight of a drafted token over that of the one before it")] = None,
    layers: Annotated[int | None, typer.Option(help="decoder layers of the head")] = None,
    intermediate_size: Annotated[int | None, typer.Option(help="width of its MLP")] = None,
    draft_vocab_size: Annotated[int | None, typer.Option(help="tokens that it can propose")] = None,
    max_long_prompts: LongOption = None,
    long_row_tokens: RowOption = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
) -> None:
    """Train a draft head: the target answers anew, its hidden states are read, the head is trained, checked and exported.

    Stopped at any point, the same command goes on.
    """
    from specstudy.drafts.pipeline import command_line, train_head

    if (out / "model.safetensors").exists():
        raise ConfigError("out", str(out), "a folder without a head; this one holds one")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError("out", str(out), "a new folder, or an empty one")
    check_writable("out", out)
    shape: dict[str, object] = {"layers": layers, "intermediate_size": intermediate_size, "draft_vocab_size": draft_vocab_size}
    for name, value in shape.items():
        if start is not None and value is not None:
            raise ConfigError(name, value, "nothing beside --from: the shape is that of the head to start from")
    changes = {**shape, "minutes": minutes, "steps": steps, "learning_rate": learning_rate, "depth_weight": depth_weight, "seed": seed}
    changes |= {"max_prompts": max_prompts, "max_long_prompts": max_long_prompts, "long_row_tokens": long_row_tokens}
    order = _order(method, target, data, work, setting, out, changes)
    print(train_head(replace(order, start=start), command_line(), tell))


def regenerate(
    target: TargetOption = DEFAULT_TARGET,
    data: DataOption = ["sharegpt", "python"],  # noqa: B006
    work: WorkOption = None,
    setting: SettingOption = "full",
    part: Annotated[int, typer.Option(min=0, help="make this part of the answers")] = 0,
    of: Annotated[int, typer.Option(min=1, help="of so many, so that several GPUs can share the work")] = 1,
    max_prompts: PromptsOption = None,
    max_long_prompts: LongOption = None,
    long_row_tokens: RowOption = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
) -> None:
    """Only the first step of training: the target's own answers, which all heads of one target share."""
    from specstudy.drafts.pipeline import regenerate as make_answers

    if part >= of:
        raise ConfigError("part", part, f"0 to {of - 1}")
    changes = {"max_prompts": max_prompts, "max_long_prompts": max_long_prompts, "long_row_tokens": long_row_tokens, "seed": seed}
    order = _order("eagle3", target, data, work, setting, Path(), changes)
    make_answers(order, tell, part, of)
    print(order.work)


def _order(method: str, target: str, data: list[str], work: Path | None, setting: str, out: Path, changes: Mapping[str, object]) -> Order:
    if importlib.util.find_spec("speculators") is None:
        raise AssetError("training needs the library speculators: pip install specstudy[train]")
    from specstudy.drafts.pipeline import Order
    from specstudy.drafts.recipe import recipe_for

    found = load_target(target)
    recipe = recipe_for(method, setting, **changes)
    place = work or cache_dir() / "training" / f"{found.name}-{setting}"
    return Order(out.resolve().name or "head", found, tuple(data), recipe, out, place)

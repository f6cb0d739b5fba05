"""Read the catalog's YAML files; a bad one is refused with its field's name."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from specstudy.catalog.models import Draft, Profile, StrictModel, Target
from specstudy.catalog.paths import data_dir
from specstudy.errors import ConfigError

Model = TypeVar("Model", bound=StrictModel)


def read_yaml(path: Path, model: type[Model]) -> Model:
    """One YAML file as `model`. Raises ConfigError for what can't be read or doesn't fit."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(str(path), "unreadable", f"a YAML file ({str(error).splitlines()[0]})") from error
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, path.name) from error


def names_in(folder: str) -> list[str]:
    """Names that `data/FOLDER` offers: its YAML files."""
    return sorted(path.stem for path in (data_dir() / folder).glob("*.yaml"))


def _named(name: str, folder: str, field: str, model: type[Model]) -> Model:
    path = data_dir() / folder / f"{name}.yaml"
    if "/" in name or not path.is_file():
        raise ConfigError.unknown(field, name, names_in(folder))
    found = read_yaml(path, model)
    if getattr(found, "name", name) != name:
        raise ConfigError(f"{path.name}: name", getattr(found, "name", None), f"must be the file's, {name}")
    return found


def load_target(name: str) -> Target:
    """A target of data/targets. Raises ConfigError for an unknown name."""
    return _named(name, "targets", "target", Target)


def load_draft(name: str) -> Draft:
    """A draft of data/drafts. Raises ConfigError for an unknown name."""
    return _named(name, "drafts", "draft", Draft)


def load_profile(name_or_path: str) -> Profile:
    """A profile of data/profiles by name, or anybody's by the path of its YAML file.

    Checks that its target and drafts exist and belong together. Raises ConfigError.
    """
    profile = read_yaml(Path(name_or_path), Profile) if name_or_path.endswith((".yaml", ".yml")) else _named(name_or_path, "profiles", "profile", Profile)
    load_target(profile.target)
    for chapter, plan in profile.chapters.items():
        for spec in plan.methods:
            if spec.draft is None:
                continue
            draft = load_draft(spec.draft)
            field = f"chapters.{chapter}.methods.draft"
            if draft.method != spec.method:
                raise ConfigError(field, spec.draft, f"a draft for {spec.method}; this one is for {draft.method}")
            if draft.target != profile.target:
                raise ConfigError(field, spec.draft, f"a draft of {profile.target}; this one belongs to {draft.target}")
    return profile

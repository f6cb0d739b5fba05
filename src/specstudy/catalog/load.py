"""Read the catalog's YAML files; a bad one is refused with its field's name."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from specstudy.catalog.imposed import check_imposed
from specstudy.catalog.models import Draft, Profile, ShapeSource, StrictModel, Target
from specstudy.catalog.paths import data_dir
from specstudy.errors import ConfigError

Model = TypeVar("Model", bound=StrictModel)


def read_yaml(path: Path, model: type[Model]) -> Model:
    """One YAML file as `model`. Raises ConfigError for what can't be read or doesn't fit."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(str(path), "unreadable", f"a YAML file ({str(error).splitlines()[0]})") from error
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError.from_pydantic(error, path.name) from error


def names_in(folder: str) -> list[str]:
    """Names that `data/FOLDER` offers: its YAML files."""
    return sorted(path.stem for path in (data_dir() / folder).glob("*.yaml"))


def named(name: str, folder: str, field: str, model: type[Model]) -> Model:
    """The entry `name` of data/`folder`. Raises ConfigError, naming `field`, for an unknown name or a file that doesn't fit."""
    path = data_dir() / folder / f"{name}.yaml"
    if "/" in name or not path.is_file():
        raise ConfigError.unknown(field, name, names_in(folder))
    found = read_yaml(path, model)
    if getattr(found, "name", name) != name:
        raise ConfigError(f"{path.name}: name", getattr(found, "name", None), f"must be the file's, {name}")
    return found


def load_target(name: str) -> Target:
    """A target of data/targets. Raises ConfigError for an unknown name."""
    return named(name, "targets", "target", Target)


def load_draft(name: str) -> Draft:
    """A draft of data/drafts. Raises ConfigError for an unknown name."""
    return named(name, "drafts", "draft", Draft)


def load_profile(name_or_path: str) -> Profile:
    """A profile of data/profiles by name, or anybody's by the path of its YAML file.

    Checks that its target and drafts exist, belong together and are of the profile's kind of evidence, and that what a
    shape imposes is published. Raises ConfigError.
    """
    profile = read_yaml(Path(name_or_path), Profile) if name_or_path.endswith((".yaml", ".yml")) else named(name_or_path, "profiles", "profile", Profile)
    source = load_target(profile.target).source
    _check_evidence(profile, "target", source)
    for chapter, plan in profile.chapters.items():
        for variant in plan.variants:
            if variant.target is not None:
                _check_evidence(profile, f"chapters.{chapter}.variants.{variant.name}.target", load_target(variant.target).source)
        for spec in plan.methods:
            if spec.draft is None:
                continue
            draft = load_draft(spec.draft)
            field = f"chapters.{chapter}.methods.draft"
            if draft.method != spec.method:
                raise ConfigError(field, spec.draft, f"a draft for {spec.method}; this one is for {draft.method}")
            if draft.target != profile.target:
                raise ConfigError(field, spec.draft, f"a draft of {profile.target}; this one belongs to {draft.target}")
            _check_evidence(profile, field, draft.source)
    check_imposed(profile, source.shape if isinstance(source, ShapeSource) else None)
    return profile


def _check_evidence(profile: Profile, field: str, source: StrictModel) -> None:
    """Random weights in a shape profile and only there: figures of two kinds are never mixed."""
    if isinstance(source, ShapeSource) != (profile.evidence == "shape"):
        allowed = f"a source of kind shape for evidence shape, and only there; the evidence is {profile.evidence}"
        raise ConfigError(field, getattr(source, "kind", None), allowed)

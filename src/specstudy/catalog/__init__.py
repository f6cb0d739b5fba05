"""What there is to study: targets, drafts, profiles."""

from specstudy.catalog.load import load_draft, load_profile, load_target, names_in
from specstudy.catalog.models import Draft, MethodSpec, Profile, Target, WheelFile, WorkloadSpec
from specstudy.catalog.paths import cache_dir, data_dir, project_root, recorded_dir

__all__ = [
    "Draft",
    "MethodSpec",
    "Profile",
    "Target",
    "WheelFile",
    "WorkloadSpec",
    "cache_dir",
    "data_dir",
    "load_draft",
    "load_profile",
    "load_target",
    "names_in",
    "project_root",
    "recorded_dir",
]

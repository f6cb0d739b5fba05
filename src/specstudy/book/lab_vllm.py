"""vLLM as a replica of the lab: several share one GPU or one CPU, with few slots each, so that waiting comes from slots."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

from specstudy.analysis.slowdown import slowdown
from specstudy.catalog import Profile, recorded_dir
from specstudy.errors import ConfigError
from specstudy.plan import make_plan
from specstudy.progress import tell
from specstudy.records import load_records
from specstudy.workloads.prompts import Prompt

SLOTS = 4
# Until a replica answers /health while others of it run or start beside it: 60 to 90 s on one H200 with 16 cores, about 40 s on a CPU without compilation.
START_S = {"gpu": 90.0, "cpu": 40.0}
CHAPTER, WORKLOAD = "03_baseline", "chat"
MEASURED = CHAPTER, "04_eagle3", "05_peagle"
# Nine replicas, one of them on its way out, must fit beside each other. 1 GiB holds the four longest requests many times over; the largest
# CUDA graph holds their tokens with K up to 15, and few graphs make a quick start.
SLICE = {"gpu-memory-utilization": 0.05, "kv-cache-memory-bytes": 2**30, "max-cudagraph-capture-size": 64}
# vLLM binds its threads to the first cores by itself, so that all replicas would share them and leave the others idle.
UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
# Share of one replica's slots in use at 1x, over the slowdown: a seventh below the floor's target, so the autoscaler needs no second one; at 3x it does.
USED = 0.6
NEAR = 4  # in concurrency


def lab_profile(profile: Profile) -> tuple[Profile, float]:
    """(the profile with the lab's engine, how long a replica takes to start in s)."""
    flags, env = (SLICE, {}) if profile.hardware == "gpu" else ({}, UNBOUND)
    more = {"max_num_seqs": SLOTS, "flags": {**profile.engine.flags, **flags}, "env": {**profile.engine.env, **env}}
    engine = profile.engine.model_copy(update=more)
    return profile.model_copy(update={"engine": engine}), START_S[profile.hardware]


def lab_prompts(profile: Profile) -> tuple[tuple[Prompt, ...], int]:
    """(prompts, output limit) of the workload that chapter 03 measures."""
    return make_plan(profile, CHAPTER, tell).pools[WORKLOAD].prompts, profile.workloads[WORKLOAD].max_tokens


def recorded_slowdown(profile: Profile, held: int, slots: int = SLOTS, results: Path | None = None) -> float:
    """The largest slowdown of a full replica that the profile's chapters 03 to 05 have, whatever the method; 1, with a word of it, where none says.

    One for all methods: runs are compared under one policy, and a service's autoscaler stays when its method changes. held: slots of the servers that
    were measured. slots: of a replica.
    """
    folder = (results or recorded_dir()) / profile.name
    records = [record for chapter in MEASURED for record in load_records(folder / f"{chapter}.jsonl").records]
    found = slowdown(records, slots, held)
    if found is None:
        tell(f"no record of {profile.name} says how much slower a full replica is: the floor takes it for as quick as an idle one; --slowdown says it")
    return found or 1.0


def usual_rate(profile: Profile, slowdown: float, slots: int = SLOTS, results: Path | None = None) -> float:
    """Requests/s that keep USED of one replica's slots busy without speculation, fewer by the slowdown that the autoscaler's floor is divided by too.

    The time of a request is the recorded one at the concurrency nearest to that, within a factor of NEAR. Raises ConfigError if there is none.
    """
    path = (results or recorded_dir()) / profile.name / f"{CHAPTER}.jsonl"
    found = [record for record in load_records(path).records if record.status == "ok" and record.method == "none" and record.workload == WORKLOAD]
    busy = USED * slots / slowdown
    took_s: dict[int, list[float]] = {}
    for record in found:
        if record.e2e_ms_mean is not None and record.concurrency is not None and abs(math.log(record.concurrency / busy)) <= math.log(NEAR):
            took_s.setdefault(record.concurrency, []).append(record.e2e_ms_mean / 1e3)
    if not took_s:
        allowed = f"requests/s: no record of {profile.name} says how long a request takes with about {busy:.1f} in flight"
        raise ConfigError("rate", None, allowed)
    nearest = min(took_s, key=lambda load: abs(math.log(load / busy)))
    return round(busy / fmean(took_s[nearest]), 2)

"""The target's own answers to the training prompts, made by vLLM: a head learns what its target says, not what a dataset says.

    python -m specstudy.drafts.answers WORK PART OF cpu|gpu

writes the parts whose number is PART modulo OF; the rest can be made at the same time on another GPU.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from specstudy.catalog.assets import Say
from specstudy.drafts.prompts import TrainingPrompt
from specstudy.drafts.recipe import Recipe
from specstudy.errors import AssetError, ConfigError, StoreWriteError
from specstudy.records.files import write_whole
from specstudy.serving.deployment import deploy
from specstudy.serving.server import log_tail, run_guarded
from specstudy.serving.vllm import vllm_env, vllm_version
from specstudy.workloads.tokens import chat_token_ids

PART_PROMPTS = 1250
# An engine is bound by its CPU side, so several share a GPU: on one H200 one gave 23,000 tokens/s and three 48,000. With a fixed KV
# cache none looks at what the others leave free.
GPU_ENGINES = 3
GPU_MEMORY = {"kv_cache_memory_bytes": 16 << 30, "gpu_memory_utilization": 0.2}
TELL_EVERY_S = 15.0


@dataclass(frozen=True)
class Job:
    """What the answers depend on; a work folder holds the answers of one job."""

    target_path: str
    max_model_len: int
    max_answer_tokens: int
    temperatures: tuple[float, ...]
    prompts_sha256: str
    seed: int
    data: tuple[str, ...]
    max_prompts: int | None
    compared_with: tuple[str, ...]
    max_long_prompts: int | None = None


@dataclass(frozen=True)
class Conversation:
    """Token ids of a prompt, as the chat template gives it, and of the target's answer."""

    source: str
    temperature: float
    prompt: np.ndarray[Any, Any]
    answer: np.ndarray[Any, Any]


def prepare(
    work: Path,
    prompts: Sequence[TrainingPrompt],
    target_folder: Path,
    recipe: Recipe,
    *,
    data: Sequence[str],
    compared_with: Sequence[str],
    say: Say,
) -> None:
    """Write WORK/prompts.jsonl, the prompts as token ids, and WORK/job.json. Raises AssetError when no prompt is short enough.

    Raises ConfigError where answers lie already: without a job.json nothing says whose they are.
    """
    if strangers := sorted(work.glob("answers-*.npz")):
        raise ConfigError("work", str(work), f"a folder without answers; there is no job.json with {strangers[0].name} to say what it answers")
    chosen = _chosen(prompts, chat_token_ids(target_folder), recipe)
    if not chosen:
        raise AssetError(f"no training prompt has at most {recipe.max_long_prompt_tokens} tokens")
    job = Job(prompts_sha256=_keys_sha256(key for key, _, _ in chosen), compared_with=tuple(compared_with), **wanted(target_folder, recipe, data))
    try:
        work.mkdir(parents=True, exist_ok=True)
        with (work / "prompts.jsonl").open("w") as lines:
            for key, source, ids in chosen:
                lines.write(json.dumps({"key": key, "source": source, "ids": ids}) + "\n")
        write_whole(work / "job.json", json.dumps(asdict(job)))
    except OSError as error:
        raise StoreWriteError(f"{work} can't be written: {error.strerror or error}; no answer was made yet") from error
    long = sum(len(ids) > recipe.max_prompt_tokens for _, _, ids in chosen)
    say(f"{len(chosen):,} of {len(prompts):,} prompts are taken, {long:,} of them with {recipe.max_prompt_tokens + 1:,} tokens or more")


def _chosen(prompts: Sequence[TrainingPrompt], encode: Callable[[Any], list[list[int]]], recipe: Recipe) -> list[tuple[str, str, list[int]]]:
    """(key, source, token ids) of the prompts that are short enough, in their order, up to the recipe's number of short and of long ones."""
    found: list[tuple[str, str, list[int]]] = []
    left = [recipe.max_prompts or len(prompts), recipe.max_long_prompts or len(prompts)]
    if recipe.long_row_tokens is None:
        left[1] = 0
    for some in batched(prompts, 1000):
        for one, ids in zip(some, encode([one.prompt.as_messages() for one in some]), strict=True):
            long = len(ids) > recipe.max_prompt_tokens
            if left[long] and len(ids) <= recipe.max_long_prompt_tokens:
                left[long] -= 1
                found.append((one.prompt.key, one.source, ids))
        if not any(left):
            break
    return found


def batched(items: Sequence[TrainingPrompt], size: int) -> Iterator[Sequence[TrainingPrompt]]:
    """The items in runs of `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))


def wanted(target_folder: Path, recipe: Recipe, data: Sequence[str]) -> dict[str, Any]:
    """The fields of a job that an order decides; `data` as `data_id` names it."""
    return {
        "target_path": str(target_folder),
        "max_model_len": recipe.max_long_prompt_tokens + recipe.max_answer_tokens,
        "max_answer_tokens": recipe.max_answer_tokens,
        "temperatures": recipe.temperatures,
        "seed": recipe.seed,
        "data": tuple(data),
        "max_prompts": recipe.max_prompts,
        "max_long_prompts": recipe.max_long_prompts if recipe.long_row_tokens else None,
    }


def read_job(work: Path) -> Job:
    """The job of a work folder. Raises AssetError for one that can't be read."""
    path = work / "job.json"
    try:
        fields = json.loads(path.read_text())
        given: dict[str, Any] = {str(name): tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return Job(**given)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AssetError(f"{path} can't be read ({error}); choose another --work folder, or remove {work} to begin anew") from error


def answer(work: Path, hardware: str, say: Say, part: int = 0, of: int = 1) -> None:
    """Make the parts that are missing, in a process of its own. Raises AssetError when vLLM fails, and for a part that isn't whole."""
    job = read_job(work)
    prompts = _prompts(work, job)
    parts = _parts(work, job, prompts)[part::of]
    mine = [path for _, path in parts]
    for key, path in parts:
        if path.exists():
            _read_part(path, key, prompts)
    if all(path.exists() for path in mine):
        return
    log = work / f"answers-{part}-of-{of}.log"
    say(f"the target answers; log: {log}")
    told = [0.0]

    def waiting(elapsed_s: float) -> None:
        if elapsed_s - told[0] > TELL_EVERY_S:
            told[0] = elapsed_s
            say(f"    {sum(path.exists() for path in mine)} of {len(mine)} parts of the answers, {elapsed_s:.0f} s")

    target = deploy(target="target", target_path=job.target_path, hardware=hardware, max_model_len=job.max_model_len, max_num_seqs=1)
    environment = {**os.environ, **vllm_env(target), "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    command = [sys.executable, "-m", "specstudy.drafts.answers", str(work), str(part), str(of), hardware]
    if run_guarded(command, environment, log, waiting):
        raise AssetError(f"the target's answers could not be made; a rerun goes on from {work}; the log ends:\n{log_tail(log)}")


def conversations(work: Path) -> list[Conversation]:
    """All answers. Raises AssetError when parts are missing."""
    job = read_job(work)
    asked = _prompts(work, job)
    found: list[Conversation] = []
    for key, path in _parts(work, job, asked):
        if not path.exists():
            raise AssetError(f"{path} is missing: not all answers were made")
        found += [one for one in _read_part(path, key, asked) if len(one.answer)]
    if not found:
        raise AssetError(f"{work} holds no answer with a token in it: the target ends each at once")
    return found


def _read_part(path: Path, key: tuple[float, int], asked: Sequence[dict[str, Any]]) -> list[Conversation]:
    """Raises AssetError for a part that isn't whole, and for the answers to other prompts, or at another temperature."""
    try:
        with path.open("rb") as file, np.load(file) as part:  # opened here: np.load leaves a damaged file open
            prompts, answers = np.split(part["prompts"], part["prompt_ends"][:-1]), np.split(part["answers"], part["answer_ends"][:-1])
            rows = zip(part["sources"], part["temperatures"], prompts, answers, strict=True)
            found = [Conversation(str(source), float(temperature), prompt, text) for source, temperature, prompt, text in rows]
    except Exception as error:  # numpy, zip and zlib have a dozen ways to say that a file is damaged
        raise AssetError(f"{path} isn't whole ({error}); remove it, and it is made again") from error
    temperature, first = key
    wanted_ = asked[first : first + PART_PROMPTS]
    same = len(found) == len(wanted_) and all(np.array_equal(one.prompt, prompt["ids"]) for one, prompt in zip(found, wanted_, strict=True))
    if not same or any(one.temperature != temperature for one in found):
        raise AssetError(f"{path} answers other prompts than those of this folder, or at another temperature; remove it, and it is made again")
    return found


def regenerated_with() -> dict[str, str]:
    """Engine and version, for the card."""
    return {"engine": "vllm", "version": vllm_version() or "unknown"}


def _keys_sha256(keys: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def _prompts(work: Path, job: Job) -> list[dict[str, Any]]:
    """key, source and ids [L] of each prompt. Raises AssetError for a file that isn't the one that the job was written with."""
    path = work / "prompts.jsonl"
    found: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                one = json.loads(line)
                found.append({"key": str(one["key"]), "source": str(one["source"]), "ids": np.array(one["ids"], dtype=np.int32)})
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise AssetError(f"{path} can't be read ({error}); choose another --work folder, or remove {work} to begin anew") from error
    if _keys_sha256(one["key"] for one in found) != job.prompts_sha256:
        raise AssetError(f"{path} doesn't hold the prompts that job.json was written with; choose another --work folder, or remove {work} to begin anew")
    return found


def _parts(work: Path, job: Job, prompts: Sequence[dict[str, Any]]) -> list[tuple[tuple[float, int], Path]]:
    """((temperature, first prompt), file) of each part."""
    keys = [(temperature, first) for first in range(0, len(prompts), PART_PROMPTS) for temperature in job.temperatures]
    return [(key, work / f"answers-{number:04d}.npz") for number, key in enumerate(keys)]


def make_parts(work: Path, part: int, of: int, hardware: str, engines: int) -> int:
    """Make this share of the parts with so many engines at once. Exit status: 0 when each made its own."""
    if engines == 1:
        _run_engine(work, part, of, hardware)
        return 0
    spawn = multiprocessing.get_context("spawn")
    each = [spawn.Process(target=_run_engine, args=(work, part + of * one, of * engines, hardware)) for one in range(engines)]
    for process in each:
        process.start()
    for process in each:
        process.join()
    return int(any(process.exitcode for process in each))


def _run_engine(work: Path, part: int, of: int, hardware: str) -> None:
    job = read_job(work)
    prompts = _prompts(work, job)
    missing = [(key, path) for key, path in _parts(work, job, prompts)[part::of] if not path.exists()]
    if not missing:
        return
    from vllm import LLM

    where: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 16} if hardware == "cpu" else {"max_num_seqs": 512, **GPU_MEMORY}
    engine = LLM(model=job.target_path, dtype="bfloat16", max_model_len=job.max_model_len, seed=job.seed, **where)
    for (temperature, first), path in missing:
        with FileLock(path.with_suffix(".lock")):  # another head's training may be making the same part
            if not path.exists():
                _make_part(engine, path, prompts[first : first + PART_PROMPTS], temperature, job)


def _make_part(engine: Any, path: Path, chosen: list[dict[str, Any]], temperature: float, job: Job) -> None:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    sampling = SamplingParams(temperature=temperature, max_tokens=job.max_answer_tokens, detokenize=False, skip_special_tokens=False)
    outputs = engine.generate([TokensPrompt(prompt_token_ids=one["ids"].tolist()) for one in chosen], sampling)
    _write(path, chosen, temperature, [list(output.outputs[0].token_ids) for output in outputs])


def _write(path: Path, prompts: list[dict[str, Any]], temperature: float, answers: list[list[int]]) -> None:
    partial = path.with_suffix(".partial.npz")
    np.savez_compressed(
        partial,
        sources=np.array([one["source"] for one in prompts]),
        temperatures=np.full(len(prompts), temperature),
        prompts=np.array([token for one in prompts for token in one["ids"]], dtype=np.int32),
        prompt_ends=np.cumsum([len(one["ids"]) for one in prompts]),
        answers=np.array([token for one in answers for token in one], dtype=np.int32),
        answer_ends=np.cumsum([len(one) for one in answers]),
    )
    partial.rename(path)  # a part that exists is whole


if __name__ == "__main__":
    sys.exit(make_parts(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], GPU_ENGINES if sys.argv[4] == "gpu" else 1))

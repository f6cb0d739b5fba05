"""What the records say of a deployment: whether this very command line was measured, and how long its requests take."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specstudy.analysis import Speedup, group, speedups
from specstudy.catalog import Profile
from specstudy.records import Record, load_records
from specstudy.records.store import REQUESTS_SCHEMA
from specstudy.serving import Deployment
from specstudy.serving.vllm import vllm_argv

SPREADS = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")  # each multiplies the GPUs of one server
PLACES = ("--model", "--host", "--port")  # where a model lies and where the server listens: what may differ from the measured command line


@dataclass(frozen=True)
class Evidence:
    """Good records of one command line and environment, and their throughput over the baseline's at each load."""

    records: tuple[Record, ...]
    gains: tuple[Speedup, ...] = ()

    @property
    def engine_version(self) -> str:
        """The newest version that was measured."""
        return newest_version(self.records) or ""

    @property
    def summary(self) -> str:
        """Like real: 04_eagle3, vllm 0.26.0."""
        kinds = sorted({record.evidence for record in self.records})
        chapters = sorted({record.chapter for record in self.records})
        return f"{', '.join(kinds)}: {', '.join(chapters)}, {self.records[0].engine} {self.engine_version}"

    @property
    def over_baseline(self) -> str:
        """Like chat c=1 2.27 (1.25 to 4.12), chat c=8 0.90 (0.85 to 0.93), under 0.95; empty for a baseline. Says where the baseline ran on another runner."""
        told = ", ".join(
            f"{gain.cell.load.label} {gain.ratio.estimate:.2f} ({gain.ratio.low:.2f} to {gain.ratio.high:.2f}){', under 0.95' if gain.flagged else ''}"
            for gain in self.gains
        )
        return told if all(gain.same_runner for gain in self.gains) else f"{told}; the baseline on another model runner"


def newest_version(records: Sequence[Record]) -> str | None:
    """The newest engine among the records, 0.26.0 before 0.9.1; None without a record."""
    return max((record.engine_version for record in records), key=lambda text: [int(part) for part in text.split(".") if part.isdigit()], default=None)


def gpus_of(argv: Sequence[str]) -> int:
    """GPUs that a command line spreads its server over."""
    return math.prod(int(argv[argv.index(flag) + 1]) for flag in SPREADS if flag in argv)


def weights_gib(records: Sequence[Record]) -> float | None:
    """The largest weights among the records, all GPUs of a server together: its log states one GPU's. None without a record that has them."""
    return max((record.weights_gib * gpus_of(record.server_argv) for record in records if record.weights_gib is not None), default=None)


def measured_methods(records: Sequence[Record]) -> str:
    """What was measured, like none; ngram K=3; my-draft K=3, 5."""
    found: dict[str, set[int]] = {}
    for record in records:
        ks = found.setdefault(record.draft or record.method, set())
        if record.num_speculative_tokens is not None:
            ks.add(record.num_speculative_tokens)
    return "; ".join(name + (f" K={', '.join(map(str, sorted(ks)))}" if ks else "") for name, ks in sorted(found.items())) or "nothing"


def placeless(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without its interpreter and with the models' places, host and port blanked."""
    words = list(argv[1:])
    for number, word in enumerate(words[:-1]):
        if word in PLACES:
            words[number + 1] = "*"
        elif word == "--speculative-config":
            config = json.loads(words[number + 1])
            words[number + 1] = json.dumps(config | ({"model": "*"} if "model" in config else {}), sort_keys=True)
    return tuple(words)


def good_records(profile: Profile, results: Path) -> Iterator[Record]:
    """Every good record of the profile, over all its chapters."""
    for path in sorted((results / profile.name).glob("*.jsonl")):
        yield from (record for record in load_records(path).records if record.status == "ok" and record.profile == profile.name)


def evidence_for(deployment: Deployment, records: Sequence[Record]) -> Evidence | None:
    """The records whose server was started with this command line and environment; None if there are none.

    A record that doesn't state its server's environment, as older ones don't, is matched by its command line alone.
    """
    env = tuple(sorted(f"{name}={value}" for name, value in deployment.env.items()))
    same = [one for one in records if one.engine == "vllm" and one.server_env in ((), env) and _same_command(deployment, one)]
    return evidence_of(same, records) if same else None


def evidence_of(own: Sequence[Record], records: Sequence[Record]) -> Evidence:
    """Records of one command line, compared with the baselines among all records of the profile."""
    return Evidence(tuple(own), tuple(_gains(own, records)))


def _gains(own: Sequence[Record], records: Sequence[Record]) -> Iterator[Speedup]:
    ids = {record.record_id for record in own}
    for chapter in dict.fromkeys(record.chapter for record in own):
        cells = group([record for record in records if record.chapter == chapter], REQUESTS_SCHEMA.empty_table())
        yield from (gain for gain in speedups(cells) if {record.record_id for record in gain.cell.records} <= ids)


def _same_command(deployment: Deployment, record: Record) -> bool:
    if (record.method, record.draft, record.target) != (deployment.method, deployment.draft, deployment.target):
        return False
    return placeless(record.server_argv) == placeless(vllm_argv(deployment, 0, record.engine_version))


def longest_request_s(records: Sequence[Record], max_model_len: int) -> float | None:
    """Seconds that the longest request can take once it runs: first token, then every token that the context can hold.

    At the slowest pace among the records: the highest percentile that each of them gives. In whole minutes, so that
    noise between two measurements changes no manifest. None without a record that has one.
    """
    ttft_ms = [value for record in records if (value := record.ttft_ms_p99 or record.ttft_ms_p90) is not None]
    tpot_ms = [value for record in records if (value := record.tpot_ms_p99 or record.tpot_ms_p90) is not None]
    if not ttft_ms or not tpot_ms:
        return None
    return 60 * math.ceil((max(ttft_ms) + max_model_len * max(tpot_ms)) / 60_000)

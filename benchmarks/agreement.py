"""Do we measure what `vllm bench serve` measures? The same server, prompts and load, by both in turn, compared in per cent.

    python benchmarks/agreement.py --out agreement.json        # about 8 minutes on two cores

A server of profile cpu-smollm2 is started as a chapter starts it, once without speculation and once with ngram, K=3. On
each, for each concurrency, both measure the same prompts, round by round, the one that goes first changing with each
round. Prompts differ between rounds. Figures are medians over the rounds.

`vllm bench serve` runs in a process of its own that imports vLLM once; each run is its `main` with the command line's
options. It reads the prompts from a JSONL file (`--dataset-name custom --disable-shuffle`) with `--skip-chat-template`:
the server applies the template to what comes through /v1/chat/completions, and without the option it would be applied
twice. The row "prompt tokens" would show that; both take it from the server's `usage`.

Where the definitions differ:

- TTFT. Both count from the send. `vllm bench serve` stops at the first chunk with a choice, which is vLLM's chunk with the
  role and no token; ours stops at the first chunk that carries a token. vLLM writes both when the first token is there, one
  after the other, 0.2 to 5 ms apart when its cores are busy. So ours is longer by that. The rows "from the first token" show
  theirs by our definition, its own times put together anew (its first inter-token latency is that pause); they aren't judged.
- TPOT. Both divide by completion_tokens - 1. `vllm bench serve` takes the span from the role's chunk to the last chunk with
  a choice, ours from the first token's chunk to the last token's: shorter by the same pause, over completion_tokens - 1.
- Output throughput. Theirs covers the whole run, ramp and drain included, from before the first send to after the last
  answer; compared with it is our output_tokens / duration_s, first send to last token. Our own figure, output_tokens_per_s,
  covers the steady window only; it is printed beside them and not compared.
- Acceptance. Both subtract two readings of /metrics around the load: length 1 + accepted / drafts, rate accepted / drafted.
- Warm-up. Both send as many requests; ours are other prompts than the measured ones, theirs are the first prompt each time
  (prefix caching is off in the study's servers). Theirs leave open connections behind, ours connect anew.
- Sampling. Temperature 0 for both; ours also sends a seed, which greedy decoding doesn't use.

The load generators run on the server's own cores; the one that uses more CPU time (see client_cpu.py) takes it from the
server. Exit status: 0, or 1 if a figure differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specstudy.catalog import load_profile
from specstudy.measure import Sampling, measure
from specstudy.plan import Cell, Plan, make_plan
from specstudy.progress import Ticker
from specstudy.serving import Deployment, Server, launch
from specstudy.serving.vllm import vllm_version
from specstudy.workloads import Closed, Prompt

PROFILE, CHAPTER, WORKLOAD = "cpu-smollm2", "04_eagle3", "chat"
SERVERS = ("none", "ngram-k3")
LIMIT = 0.05
# Runs `vllm bench serve` for each line of options, a JSON list, and answers with its result, a line of JSON. The `vllm` script
# of the CPU build looks itself up under a name that it doesn't have, so its `main` is called.
VLLM_BENCH = """
import contextlib, json, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
print("ready", flush=True)
for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        result = main(parser.parse_args(json.loads(line)))
    print(json.dumps(result, default=float), flush=True)
"""


@dataclass(frozen=True)
class Figure:
    """One row of the table: where each side has it, and whether it is to agree."""

    name: str
    ours: str
    theirs: str | None
    note: str
    judged: bool = True


FIGURES = (
    Figure("TTFT mean, ms", "ttft_ms_mean", "mean_ttft_ms", "ours: first token; theirs: the role's chunk just before it"),
    Figure("TTFT median, ms", "ttft_ms_p50", "median_ttft_ms", "as above"),
    Figure("  from first token", "ttft_ms_mean", "first_token_ttft_ms", "TTFT mean, theirs by our definition; not judged", judged=False),
    Figure("TPOT mean, ms", "tpot_ms_mean", "mean_tpot_ms", "ours: first to last token; theirs: from the role's chunk"),
    Figure("TPOT median, ms", "tpot_ms_p50", "median_tpot_ms", "as above"),
    Figure("  from first token", "tpot_ms_mean", "first_token_tpot_ms", "TPOT mean, theirs by our definition; not judged", judged=False),
    Figure("whole-run tokens/s", "whole_run_tokens_per_s", "output_throughput", "ours: output_tokens / duration_s; both with ramp and drain"),
    Figure("steady tokens/s", "output_tokens_per_s", None, "our figure: steady window only; not compared", judged=False),
    Figure("acceptance length", "acceptance_length", "spec_decode_acceptance_length", "both from /metrics"),
    Figure("acceptance rate", "acceptance_rate", "acceptance_rate", "both from /metrics"),
    Figure("prompt tokens", "prompt_tokens", "total_input_tokens", "both from usage: the same prompts, one template"),
    Figure("output tokens", "output_tokens", "total_output_tokens", "both from usage"),
)


@dataclass(frozen=True)
class Row:
    """A figure of one cell: each side's value in every round."""

    figure: Figure
    ours: list[float]
    theirs: list[float]

    @property
    def difference(self) -> float | None:
        """Ours over theirs, less 1; of the medians. None for a row that isn't compared."""
        return statistics.median(self.ours) / statistics.median(self.theirs) - 1 if self.theirs else None

    @property
    def paired(self) -> float | None:
        """Median of the rounds' own differences: what a slow minute does to both sides of a round cancels in it."""
        return statistics.median(a / b - 1 for a, b in zip(self.ours, self.theirs, strict=True)) if self.theirs else None

    @property
    def agrees(self) -> bool:
        """Within the limit, or not judged."""
        return not self.figure.judged or (self.difference is not None and abs(self.difference) <= LIMIT)


class VllmBench:
    """`vllm bench serve`, ready to run again and again."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("vllm bench serve ended:\n" + "\n".join(self._log.read_text(errors="replace").splitlines()[-20:]))
        return line

    def run(self, options: list[str]) -> dict[str, Any]:
        """Its result, as --save-result would write it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._answer())
        return result


@contextmanager
def vllm_bench(folder: Path) -> Iterator[VllmBench]:
    """Its process for the length of the block."""
    log = folder / "vllm-bench.log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", VLLM_BENCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True)
    try:
        yield VllmBench(process, log)
    finally:
        process.kill()
        process.communicate()


def measure_ours(server: Server, cell: Cell, prompts: list[Prompt], warmups: list[Prompt], how: Sampling) -> dict[str, float]:
    """One repeat by us. Exits if it fails."""
    assert cell.concurrency is not None
    measured = measure(server, prompts, warmups, Closed(cell.concurrency), how)
    if measured.error is not None:
        sys.exit(f"{cell.label}: {measured.error}")
    figures = measured.figures
    figures["whole_run_tokens_per_s"] = figures["output_tokens"] / figures["duration_s"]
    figures["prompt_tokens"] = sum(request.prompt_tokens or 0 for request in measured.requests)
    return {figure.ours: figures[figure.ours] for figure in FIGURES if figures.get(figure.ours) is not None}


def measure_theirs(bench: VllmBench, server: Server, deployment: Deployment, cell: Cell, prompts: list[Prompt], how: Sampling, path: Path) -> dict[str, float]:
    """The same by `vllm bench serve`. Exits if a request failed."""
    path.write_text("".join(json.dumps({"prompt": prompt.as_messages()[0]["content"]}) + "\n" for prompt in prompts))
    result = bench.run(
        [
            *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", server.base_url),
            *("--model", deployment.target_path, "--served-model-name", server.model),
            *("--dataset-name", "custom", "--dataset-path", str(path), "--disable-shuffle", "--skip-chat-template"),
            *("--custom-output-len", str(how.max_tokens), "--num-prompts", str(len(prompts)), "--temperature", str(how.temperature)),
            *("--max-concurrency", str(cell.concurrency), "--num-warmups", str(cell.warmups), "--disable-tqdm", "--save-detailed"),
        ]
    )
    if result["completed"] != len(prompts):
        sys.exit(f"{cell.label}: vllm bench serve completed {result['completed']} of {len(prompts)} requests")
    if "spec_decode_acceptance_rate" in result:
        result["acceptance_rate"] = result["spec_decode_acceptance_rate"] / 100  # theirs is in per cent
    result |= from_first_token(result)
    return {figure.theirs: result[figure.theirs] for figure in FIGURES if figure.theirs in result}


def from_first_token(result: dict[str, Any]) -> dict[str, float]:
    """Their TTFT and TPOT by our definition: the first of a request's inter-token latencies is the pause from role to token."""
    requests = list(zip(result["ttfts"], result["itls"], result["output_lens"], strict=True))
    return {
        "first_token_ttft_ms": 1e3 * statistics.mean(ttft + pauses[0] for ttft, pauses, _ in requests),
        "first_token_tpot_ms": 1e3 * statistics.mean(sum(pauses[1:]) / (tokens - 1) for _, pauses, tokens in requests if tokens > 1),
    }


def rounds_of(bench: VllmBench, server: Server, deployment: Deployment, plan: Plan, cell: Cell, count: int, folder: Path) -> list[dict[str, Any]]:
    """Both sides' figures, round by round."""
    spec, seed = plan.profile.workloads[cell.workload], plan.profile.measuring.seed
    how = Sampling(spec.max_tokens, spec.temperature, seed)
    rounds = []
    for number in range(count):
        prompts, warmups = cell.prompts(plan.pools[cell.workload], number, seed)
        figures: dict[str, Any] = {"server": deployment.label, "concurrency": cell.concurrency, "round": number}
        for side in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            if side == "ours":
                figures[side] = measure_ours(server, cell, prompts, warmups, how)
            else:
                figures[side] = measure_theirs(bench, server, deployment, cell, prompts, how, folder / "prompts.jsonl")
        print(f"{deployment.label} c={cell.concurrency} round {number + 1}/{count}", flush=True)
        rounds.append(figures)
    return rounds


def rows_of(rounds: list[dict[str, Any]]) -> list[Row]:
    """A cell's rows; a figure that the cell doesn't have is left out."""
    rows = []
    for figure in FIGURES:
        ours = [one["ours"][figure.ours] for one in rounds if figure.ours in one["ours"]]
        theirs = [one["theirs"][figure.theirs] for one in rounds if figure.theirs in one["theirs"]]
        if ours and (theirs or figure.theirs is None):
            rows.append(Row(figure, ours, theirs))
        elif ours or theirs:
            sys.exit(f"only one side reports {figure.name}")
    return rows


def line_of(row: Row) -> str:
    """One line of the table."""

    def cells(values: list[float]) -> str:
        spread = f"{min(values):.4g}-{max(values):.4g}" if values else ""
        return f"{statistics.median(values):>9.4g} {spread:>15}" if values else f"{'':>9} {spread:>15}"

    difference, paired = ("" if share is None else f"{share:+.1%}" for share in (row.difference, row.paired))
    verdict = ("OK" if row.agrees else "NOT") if row.figure.judged else ""
    return f"  {row.figure.name:<19} {cells(row.ours)} {cells(row.theirs)} {difference:>7} {verdict:<4} {paired:>7}  {row.figure.note}"


def report(rounds: list[dict[str, Any]]) -> bool:
    """Print every cell's table; whether all of it agrees."""
    good = True
    cells = dict.fromkeys((one["server"], one["concurrency"]) for one in rounds)
    print(f"\nOurs and vllm bench serve {vllm_version()}; medians (lowest-highest of the rounds); diff: of the medians; paired: median of the rounds' own")
    for server, concurrency in cells:
        rows = rows_of([one for one in rounds if (one["server"], one["concurrency"]) == (server, concurrency)])
        print(f"\n{server}, concurrency {concurrency}\n  {'':<19} {'ours':>9} {'':>15} {'theirs':>9} {'':>15} {'diff':>7} {f'{LIMIT:.0%}?':<4} {'paired':>7}")
        for row in rows:
            print(line_of(row))
            good &= row.agrees
    return good


def run(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Start each server and measure its cells."""
    plan = make_plan(load_profile(PROFILE), CHAPTER, print)
    deployments = {server.deployment.label: server.deployment for server in plan.servers}
    rules = plan.profile.measuring
    cells = [
        Cell(
            workload=WORKLOAD,
            pattern="closed",
            concurrency=c,
            request_rate=None,
            num_prompts=given.prompts_per_slot * c,
            warmups=rules.warmups_per_slot * c,
        )
        for c in given.concurrency
    ]
    rounds: list[dict[str, Any]] = []
    with vllm_bench(folder) as bench:
        for label in SERVERS:
            with launch(deployments[label], folder / f"{label}.log", waiting=Ticker(f"starting {label}")) as server:
                for cell in cells:
                    rounds += rounds_of(bench, server, deployments[label], plan, cell, given.rounds, folder)
    return rounds


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for every round's figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompts-per-slot", type=int, default=10, help="requests of one run, per unit of concurrency")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        rounds = run(given, Path(folder))
    given.out.write_text(json.dumps({"vllm": vllm_version(), "profile": PROFILE, "rounds": rounds}, indent=1) + "\n")
    return 0 if report(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())

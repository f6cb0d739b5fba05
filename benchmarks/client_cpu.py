"""CPU time per request of three load generators: ours, `vllm bench serve` and GuideLLM, against the same stand-in server.

    python benchmarks/client_cpu.py                    # about 15 minutes
    python benchmarks/client_cpu.py --gap-ms 0         # a write for each token: then our client waits for the server
    python benchmarks/client_cpu.py --gap-ms 20        # tokens 20 ms apart: every token wakes the client

A load generator shares its machine with the server that it measures, or at least has to keep up with it; what it costs
decides how fast a server it can measure. `instant_server.py` answers every request with 100 tokens, so what a generator
uses, it uses for itself.

- Each generator runs as a process of its own, with the same prompts, closed loop, 64 in flight, its progress display off.
  CPU time is user + system of that process and its children.
- It runs with N and with 3N requests; the difference over 2N leaves start-up out (imports, tokenizer, workers). Start-up of
  `vllm bench serve` is 13 CPU seconds, give or take some tenths (seconds, on a busy machine), so 2N requests must cost
  much more than that varies: with N in the hundreds the result is noise. The seconds of each run are printed, and each
  round's own ratio, so that a result which isn't one can be seen. GuideLLM, whose requests cost most, takes N / 4.
- The server has one core, the generator another, where there are two. A machine that does other things at the same time
  shifts the figures: compare the ratios, which come from interleaved runs.
- Each generator asks for what it asks for by default. Ours and GuideLLM have the server state the running total with each
  token (`continuous_usage_stats`), which makes their events 40 % longer than those of `vllm bench serve`.
- `vllm bench serve` and GuideLLM also compute and write their report. The row "ours, whole record" is `measure()`, which
  computes ours; the ratios are those of "ours", the client and the driver, the part that runs while the server is measured.

GuideLLM pins other versions than vLLM does, so it gets an environment of its own in specstudy's cache folder at first use
(a download of up to 3 GB: it depends on torch). Exit status: 0, or 1 if ours uses more than half of either's CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import psutil

from specstudy.catalog import load_profile, load_target
from specstudy.catalog.materialise import target_folder
from specstudy.catalog.paths import cache_dir
from specstudy.measure import Sampling, StreamClient, drive, measure, read_counters, run_async
from specstudy.serving import Server
from specstudy.serving.server import free_port
from specstudy.serving.vllm import vllm_version
from specstudy.workloads import Closed, Prompt

GUIDELLM = "0.8.1"
MODEL = "stand-in"
LIMIT = 0.5
# What `vllm bench serve` runs; the `vllm` script of the CPU build looks itself up under a name that it doesn't have.
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class Setup:
    """What all generators share."""

    base_url: str
    prompts: Path
    concurrency: int
    tokens: int
    tokenizer: Path
    folder: Path


@dataclass(frozen=True)
class Generator:
    """One load generator and how to run it with so many requests."""

    name: str
    version: str
    how: str
    argv: Callable[[int], list[str]]
    env: dict[str, str] = field(default_factory=dict)
    share: float = 1.0  # of N


@dataclass(frozen=True)
class Run:
    """One process, from start to end."""

    requests: int
    cpu_s: float
    wall_s: float
    server_cpu_s: float


def our_generators(setup: Setup) -> list[Generator]:
    """The client alone, and `measure()` with it."""

    def argv(part: str) -> Callable[[int], list[str]]:
        words = [sys.executable, __file__, "--part", part, "--base-url", setup.base_url, "--prompts", str(setup.prompts)]
        return lambda requests: [*words, "--concurrency", str(setup.concurrency), "--tokens", str(setup.tokens), "--requests", str(requests)]

    ours = version("specstudy")
    return [
        Generator("ours", ours, "StreamClient through drive, Closed", argv("drive")),
        Generator("ours, whole record", ours, "measure(), Closed", argv("measure")),
    ]


def vllm_generator(setup: Setup) -> Generator:
    """vLLM's own, as installed here."""
    options = [
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", setup.base_url),
        *("--model", str(setup.tokenizer), "--served-model-name", MODEL, "--temperature", "0"),
        *("--dataset-name", "custom", "--dataset-path", str(setup.prompts), "--custom-output-len", str(setup.tokens), "--skip-chat-template"),
        *("--max-concurrency", str(setup.concurrency), "--disable-tqdm", "--save-result", "--result-dir", str(setup.folder)),
    ]
    return Generator(
        "vllm bench serve",
        vllm_version() or "none",
        "openai-chat, custom dataset, --temperature 0 --disable-tqdm --save-result",
        lambda requests: [sys.executable, "-c", VLLM_BENCH, *options, "--num-prompts", str(requests)],
        {"HF_HUB_OFFLINE": "1"},
    )


def guidellm_generator(setup: Setup, program: Path) -> Generator:
    """GuideLLM with its defaults, apart from the display and the CSV report."""
    backend = {"kind": "openai_http", "target": setup.base_url, "model": MODEL, "max_tokens": setup.tokens, "extras": {"body": {"temperature": 0}}}
    options = [
        *("--backend", json.dumps(backend), "--profile", f"kind=concurrent,streams={setup.concurrency}"),
        *("--data", f"kind=json_file,path={setup.prompts}", "--tokenizer", f"kind=huggingface_auto,model={setup.tokenizer}"),
        *("--output", f"kind=json,path={setup.folder / 'guidellm.json'}", "--disable-console"),
    ]
    return Generator(
        "GuideLLM",
        GUIDELLM,
        "openai_http, profile concurrent, JSON report, --disable-console",
        lambda requests: [str(program), "run", *options, "--constraint", f"kind=max_requests,count={requests}"],
        {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(setup.folder / "hf-datasets"), "GUIDELLM__LOGGING__CONSOLE_LOG_LEVEL": "WARNING"},
        0.25,
    )


def guidellm_program() -> Path:
    """GuideLLM's script, in an environment of its own; installed at first use."""
    home = cache_dir() / "tools" / f"guidellm-{GUIDELLM}"
    done = home / "installed"
    if not done.exists():
        print(f"installing GuideLLM {GUIDELLM} into an environment of its own (some minutes)", flush=True)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"guidellm=={GUIDELLM}"], check=True)
        done.touch()
    return home / "bin" / "guidellm"


def cores() -> tuple[set[int], set[int]]:
    """(server's, generator's); the same one where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[0]}, {usable[min(1, len(usable) - 1)]}


@contextmanager
def instant_server(tokens: int, gap_ms: float | None, core: set[int]) -> Iterator[tuple[str, psutil.Process]]:
    """The stand-in server on its core: its address and its process."""
    port = free_port()
    script = Path(__file__).with_name("instant_server.py")
    argv = [sys.executable, str(script), "--port", str(port), "--model", MODEL, "--tokens", str(tokens)]
    argv += [] if gap_ms is None else ["--gap-ms", str(gap_ms)]
    process = subprocess.Popen(argv, preexec_fn=lambda: os.sched_setaffinity(0, core))
    base_url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(base_url, process)
        yield base_url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def wait_until_up(base_url: str, process: subprocess.Popen[bytes]) -> None:
    """Until /metrics answers."""
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            read_counters(base_url)
            return
        except Exception:
            time.sleep(0.1)
    sys.exit("the stand-in server didn't start")


def run_once(generator: Generator, requests: int, base_url: str, server: psutil.Process, core: set[int], log: Path) -> Run:
    """Run it to its end. Exits with its last lines if it fails."""
    before, server_before, began = read_counters(base_url).requests_finished, server_cpu(server), time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            generator.argv(requests),
            env={**os.environ, **generator.env},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )
        try:
            _, status, used = os.wait4(process.pid, 0)  # the process and the children that it waited for
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - began
    finished = round(read_counters(base_url).requests_finished - before)
    if process.returncode or finished < requests:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        sys.exit(f"{generator.name} ended with status {process.returncode}, {finished} of {requests} requests answered:\n{tail}")
    return Run(finished, used.ru_utime + used.ru_stime, wall_s, server_cpu(server) - server_before)


def server_cpu(server: psutil.Process) -> float:
    """CPU seconds that it has used."""
    times = server.cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True)
class Cost:
    """What one request costs, from two runs of one generator."""

    client_ms: float
    server_ms: float
    wall_ms: float


def cost(few: Run, many: Run) -> Cost:
    """Difference of two runs over the difference of their requests, ms."""
    share = 1e3 / (many.requests - few.requests)
    return Cost((many.cpu_s - few.cpu_s) * share, (many.server_cpu_s - few.server_cpu_s) * share, (many.wall_s - few.wall_s) * share)


def medians(costs: list[Cost]) -> Cost:
    """Each figure's median."""
    return Cost(*(statistics.median(getattr(one, name) for one in costs) for name in ("client_ms", "server_ms", "wall_ms")))


def table(generators: list[Generator], costs: dict[str, list[Cost]]) -> str:
    """The result, a line for each generator."""
    ours = medians(costs["ours"]).client_ms
    lines = [f"{'generator':<20} {'version':<9} {'CPU ms/request':>14} {'(lowest-highest)':>18} {'x ours':>7} {'wall ms':>8} {'server ms':>9}  how"]
    for generator in generators:
        own = costs[generator.name]
        middle, each = medians(own), [one.client_ms for one in own]
        spread = f"{min(each):.2f}-{max(each):.2f}"
        lines.append(
            f"{generator.name:<20} {generator.version:<9} {middle.client_ms:>14.2f} {spread:>18} {middle.client_ms / ours:>7.2f} "
            f"{middle.wall_ms:>8.2f} {middle.server_ms:>9.2f}  {generator.how}"
        )
    return "\n".join(lines)


def verdict(costs: dict[str, list[Cost]]) -> bool:
    """Whether ours uses at most LIMIT of each of the others; says so, with each round's own ratio."""
    ours = medians(costs["ours"]).client_ms
    good = True
    for name in costs:
        if not name.startswith("ours"):
            share = ours / medians(costs[name]).client_ms
            good &= share <= LIMIT
            each = ", ".join(f"{own.client_ms / other.client_ms:.0%}" for own, other in zip(costs["ours"], costs[name], strict=True))
            print(f"{'OK ' if share <= LIMIT else 'NOT'} ours uses {share:.0%} of the CPU time of {name} (by round: {each}); at most {LIMIT:.0%} is wanted")
    return good


def write_prompts(path: Path, count: int) -> None:
    """Short prompts, all different, in the form that vLLM and GuideLLM both read."""
    path.write_text("".join(json.dumps({"prompt": f"Say something about the number {number}."}) + "\n" for number in range(count)))


def generate(given: argparse.Namespace) -> None:
    """The child's side: our own generator, once."""
    prompts = [Prompt.user(json.loads(line)["prompt"]) for line in given.prompts.read_text().splitlines()[: given.requests]]
    how = Sampling(given.tokens, 0.0, 0)
    if given.part == "measure":
        server = Server(given.base_url, MODEL, (), given.prompts, SimpleNamespace(poll=lambda: None, pid=os.getpid()), 0.0)  # type: ignore[arg-type]
        error = measure(server, prompts, [], Closed(given.concurrency), how).error
    else:
        error = run_async(_drive(given, prompts, how))
    if error is not None:
        sys.exit(error)


async def _drive(given: argparse.Namespace, prompts: list[Prompt], how: Sampling) -> str | None:
    async with StreamClient(given.base_url, MODEL) as client:
        bodies = [client.body(prompt, max_tokens=how.max_tokens, temperature=how.temperature, seed=how.seed) for prompt in prompts]
        load = await drive(client, bodies, Closed(given.concurrency))
    return next((outcome.error for outcome in load.outcomes if outcome.error is not None), None)


def compare(given: argparse.Namespace, folder: Path) -> int:
    """The parent's side: interleave all generators, print, judge."""
    program = guidellm_program()
    tokenizer = target_folder(load_target(load_profile("cpu-smollm2").target), print)
    server_core, client_core = cores()
    prompts = folder / "prompts.jsonl"
    write_prompts(prompts, 3 * given.requests)
    with instant_server(given.tokens, given.gap_ms, server_core) as (base_url, server):
        setup = Setup(base_url, prompts, given.concurrency, given.tokens, tokenizer, folder)
        generators = [*our_generators(setup), vllm_generator(setup), guidellm_generator(setup, program)]
        costs: dict[str, list[Cost]] = {generator.name: [] for generator in generators}
        for number in range(given.rounds):
            for generator in generators:
                base = max(1, round(generator.share * given.requests))
                few, many = (run_once(generator, n, base_url, server, client_core, folder / "log") for n in (base, 3 * base))
                costs[generator.name].append(cost(few, many))
                print(
                    f"round {number + 1}/{given.rounds} {generator.name}: {costs[generator.name][-1].client_ms:.3f} CPU ms per request "
                    f"({few.requests}: {few.cpu_s:.2f} s, {many.requests}: {many.cpu_s:.2f} s)",
                    flush=True,
                )
    apart = "on a core each" if server_core != client_core else "on the same core"
    pace = "in one write" if given.gap_ms is None else f"{given.gap_ms:g} ms apart"
    print(
        f"\n{given.tokens} tokens a request, {pace}; {given.concurrency} in flight; medians of {given.rounds} rounds, "
        f"each {given.requests} and {3 * given.requests} requests; server and generator {apart}"
    )
    print(table(generators, costs))
    return 0 if verdict(costs) else 1


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000, help="N; every generator runs with N and 3N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--gap-ms", type=float, help="between two tokens of an answer, each a write of its own; without it an answer is one write")
    parser.add_argument("--part", choices=("drive", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--base-url", help=argparse.SUPPRESS)
    parser.add_argument("--prompts", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        generate(given)
        return 0
    with tempfile.TemporaryDirectory(prefix="client-cpu-") as folder:
        return compare(given, Path(folder))


if __name__ == "__main__":
    sys.exit(main())

"""One real vLLM server for the whole session, in float32 on a CPU, and the stand-in beside it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from tests.standin.engine import standin_engine, survivors

from specstudy.catalog import load_target
from specstudy.catalog.materialise import target_folder
from specstudy.measure import StreamClient, drive, run_async
from specstudy.serving import ENGINES, Deployment, Server, deploy, launch
from specstudy.workloads import Closed, Prompt, chat_token_counter, dataset

TARGET = "smollm2-135m-instruct"
START_TIMEOUT_S = 900  # a minute where nothing else runs
MAX_TOKENS = 48
Make = Callable[..., Deployment]


@pytest.fixture(scope="session")
def deployment() -> Make:
    """`deployment(method=…, …)`: the target as the CPU profile serves it, but in float32."""
    folder = target_folder(load_target(TARGET))

    def make(**method: object) -> Deployment:
        fixed = {"target": TARGET, "target_path": str(folder), "hardware": "cpu", "dtype": "float32"}
        return deploy(**fixed, max_model_len=2048, max_num_seqs=16, flags={"enforce-eager": True}, **method)

    return make


@pytest.fixture(scope="session")
def vllm_server(deployment: Make, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The baseline, without speculation."""
    if ENGINES["vllm"].version() is None:
        pytest.skip("vLLM isn't installed here")
    with launch(deployment(), tmp_path_factory.mktemp("vllm") / "log", timeout_s=START_TIMEOUT_S) as server:
        yield server


@pytest.fixture(scope="session")
def standin_server(deployment: Make, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The stand-in with the same command-line flags."""
    marker = f"standin-{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINES, "vllm", standin_engine({"*": {"chunk_tokens": [1, 2]}}, marker))
        with launch(deployment(), tmp_path_factory.mktemp("standin") / "log", timeout_s=120) as server:
            patch.undo()
            yield server
    assert survivors(marker) == []


@pytest.fixture(params=["standin", pytest.param("vllm", marks=pytest.mark.live)])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two in turn."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Eight of HumanEval and eight of MT-Bench, of at most 400 tokens."""
    count = chat_token_counter(target_folder(load_target(TARGET)))
    short = [(prompt for prompt in dataset(name) if count(prompt.as_messages()) <= 400) for name in ("humaneval", "mtbench")]
    return [prompt for each in short for prompt in itertools.islice(each, 8)]


def greedy(server: Server, prompts: list[Prompt]) -> list[list[int]]:
    async def run() -> list[list[int]]:
        async with StreamClient(server.base_url, server.model, want_token_ids=True) as client:
            load = await drive(client, [client.body(prompt, max_tokens=MAX_TOKENS, temperature=0, seed=0) for prompt in prompts], Closed(4))
        assert [outcome.error for outcome in load.outcomes] == [None] * len(prompts)
        assert [len(outcome.token_ids) for outcome in load.outcomes] == [outcome.completion_tokens for outcome in load.outcomes]
        return [outcome.token_ids for outcome in load.outcomes]

    return run_async(run())


def pictures(cells: list[nbformat.NotebookNode]) -> int:
    """Those in the cells' outputs."""
    pages = (output["data"].get("text/html", "") for cell in cells for output in cell.get("outputs", []) if "data" in output)
    return sum("data:image/png" in page for page in pages)


@pytest.fixture(scope="session")
def baseline(vllm_server: Server, prompts: list[Prompt]) -> list[list[int]]:
    return greedy(vllm_server, prompts)

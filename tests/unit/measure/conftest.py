from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from tests.standin.engine import MARKER, SERVER, StandIn, survivors

from specstudy.serving.server import free_port, running


@pytest.fixture(scope="module")
def module_standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    folder, port = tmp_path_factory.mktemp("standin"), free_port()
    marker = str(folder)
    speculative = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
    argv = [sys.executable, str(SERVER), "--port", str(port), "--served-model-name", "words", "--speculative-config", speculative]
    with running(argv, {MARKER: marker}, port=port, model="words", log_path=folder / "log", timeout_s=120) as server:
        yield StandIn(server)
    assert survivors(marker) == []


@pytest.fixture
def standin(module_standin: StandIn) -> StandIn:
    """The module's stand-in with speculation on (K = 3), its behaviour as by default."""
    module_standin.order()
    return module_standin

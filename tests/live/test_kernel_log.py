"""The stand-in's lines on compiled kernels are those that vLLM's own monitor writes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.standin.server import COMPILED, WATCHING

from specstudy.measure.kernels import COMPILED as COUNTED
from specstudy.measure.kernels import WATCHED

# vLLM's module with its own logger, called as its hook of Triton calls it; on a CPU nothing is compiled by itself.
ACTIVATE = "jit_monitor.activate()"
COMPILE = "jit_monitor._log_triton_jit_compile('_topk_forward', {'compile': {'constants': {'BLOCK': 32}}})"


# The engine's own process logs so.
SETUP = """
from vllm import logger
from vllm.config.logging import LoggingConfig
from vllm.utils import jit_monitor
logger.configure_logging(LoggingConfig())
logger.set_vllm_process_name("EngineCore")
"""


def said(*calls: str) -> list[str]:
    code = SETUP + "\n".join(calls)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200, check=True)
    return [line for line in (done.stdout + done.stderr).splitlines() if "[jit_monitor.py:" in line]


def bare(line: str) -> str:
    """Level, module and message, without process, time and line number."""
    found = re.fullmatch(r"\(\w+ pid=\d+\) (\w+) \d\d-\d\d \d\d:\d\d:\d\d \[(\w+\.py):\d+\] (.*)", line)
    assert found is not None, line
    return " ".join(found.groups())


@pytest.mark.live
def test_the_real_monitor_writes_what_the_stand_in_writes() -> None:
    watching, compiled = said(ACTIVATE, COMPILE)
    assert (bare(watching), bare(compiled)) == (bare(WATCHING), bare(COMPILED))


@pytest.mark.live
def test_a_kernel_is_named_once_unless_the_monitor_is_verbose() -> None:
    assert len(said(ACTIVATE, COMPILE, COMPILE)) == 2
    lines = said("jit_monitor.activate(verbose=True)", COMPILE, COMPILE)
    assert [line.encode().count(COUNTED) for line in lines] == [0, 1, 1]
    assert WATCHED in lines[0].encode()

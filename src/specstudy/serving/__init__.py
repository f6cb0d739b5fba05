"""A Deployment becomes a command line, a running server, a stopped server."""

from specstudy.serving.checks import check_files
from specstudy.serving.deployment import Deployment, deploy
from specstudy.serving.launch import ENGINES, Engine, engine_named, launch, launch_together
from specstudy.serving.logs import log_facts
from specstudy.serving.server import Server, log_tail

__all__ = ["ENGINES", "Deployment", "Engine", "Server", "check_files", "deploy", "engine_named", "launch", "launch_together", "log_facts", "log_tail"]

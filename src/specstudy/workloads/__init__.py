"""Prompts and arrivals."""

from specstudy.workloads.arrivals import Arrival, Closed, Open, poisson, steps, trace
from specstudy.workloads.datasets import DATASETS, dataset
from specstudy.workloads.prompts import Pool, Prompt, TokenCounter, build_pool
from specstudy.workloads.random_tokens import random_pool
from specstudy.workloads.tokens import chat_token_counter, kept_token_counter

__all__ = [
    "DATASETS",
    "Arrival",
    "Closed",
    "Open",
    "Pool",
    "Prompt",
    "TokenCounter",
    "build_pool",
    "chat_token_counter",
    "dataset",
    "kept_token_counter",
    "poisson",
    "random_pool",
    "steps",
    "trace",
]

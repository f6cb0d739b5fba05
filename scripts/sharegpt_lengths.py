"""Count the lengths of ShareGPT's first exchanges: `python scripts/sharegpt_lengths.py` writes data/workloads/sharegpt_lengths.csv.

A prompt is a conversation's opening turn, an answer the first reply, both without a chat template, in tokens of
SmolLM2's tokenizer (49,152 entries): a tokenizer with a larger vocabulary makes about a tenth fewer of the same text.
Evaluation side of the split. As in vLLM's own ShareGPT benchmark, an exchange is left out with under 4 tokens on a side, a
prompt over 1,024, or over 2,048 in all. Of the rest 2,000 are drawn.
"""

from __future__ import annotations

import csv
import random

from transformers import AutoTokenizer

from specstudy.catalog import data_dir, load_target
from specstudy.catalog.materialise import target_folder
from specstudy.workloads.sharegpt import sharegpt_conversations

DRAWN, SEED = 2000, 0


def main() -> None:
    """Count, draw, write."""
    tokenizer = AutoTokenizer.from_pretrained(target_folder(load_target("smollm2-135m-instruct"), print))
    exchanges = [
        (conversation.turns[0][1], conversation.turns[1][1])
        for conversation in sharegpt_conversations(print)
        if conversation.is_evaluation and len(conversation.turns) >= 2
    ]
    sides = [tokenizer([exchange[side] for exchange in exchanges])["input_ids"] for side in (0, 1)]
    pairs = [(len(prompt), len(answer)) for prompt, answer in zip(*sides, strict=True)]
    fitting = [(prompt, answer) for prompt, answer in pairs if 4 <= prompt <= 1024 and answer >= 4 and prompt + answer <= 2048]
    path = data_dir() / "workloads" / "sharegpt_lengths.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["prompt_tokens", "output_tokens"])
        writer.writerows(random.Random(SEED).sample(fitting, DRAWN))
    print(f"{path}: {DRAWN} of {len(fitting)} fitting exchanges, {len(pairs)} read")


if __name__ == "__main__":
    main()

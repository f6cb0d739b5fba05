"""Choose the layers of a pruned draft: leave one out after the other, each time the one that is missed least.

    python scripts/choose_layers.py --target smollm2-135m-instruct --keep 23

Agreement is the share of the target's own greedy tokens that the rest predicts when it is fed the target's
text. This is the greedy form of the search in Draft & Verify (Zhang et al., arXiv 2309.08168). About five
minutes for SmolLM2-135M on one core. Prints a line for each layer left out.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specstudy.catalog import load_target
from specstudy.catalog.materialise import target_folder
from specstudy.workloads import Prompt, dataset

QUESTIONS = (
    "What is the capital of France and why?",
    "Explain photosynthesis simply.",
    "Write a short email to my boss asking for leave.",
    "How do I sort a list in Python?",
    "Give me three ideas for dinner.",
    "Summarize the plot of Hamlet.",
    "What are the benefits of exercise?",
    "Tell me about the Roman empire.",
)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--keep", type=int, default=23, help="layers to keep")
    options = parser.parse_args()
    folder = target_folder(load_target(options.target), print)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    layers = list(model.model.layers)
    prompts = [*itertools.islice(dataset("humaneval"), 6), *map(Prompt.user, QUESTIONS)]
    with torch.no_grad():
        texts = [generate(model, tokenizer, prompt) for prompt in prompts]
        kept = list(range(len(layers)))
        print(len(kept), f"{agreement(model, layers, kept, texts):.3f}", "all", flush=True)
        while len(kept) > options.keep:
            share, left_out = max((agreement(model, layers, [k for k in kept if k != one], texts), one) for one in kept)
            kept.remove(left_out)
            print(len(kept), f"{share:.3f}", kept, flush=True)


def generate(model: torch.nn.Module, tokenizer: AutoTokenizer, prompt: Prompt) -> tuple[torch.Tensor, int]:
    """Token ids of prompt and 40 greedy tokens, shape [1, length], and the prompt's length."""
    ids = tokenizer.apply_chat_template(prompt.as_messages(), add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
    return model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=tokenizer.pad_token_id), ids.shape[1]


def agreement(model: torch.nn.Module, layers: list[torch.nn.Module], kept: list[int], texts: list[tuple[torch.Tensor, int]]) -> float:
    """Share of the answers' tokens that the model with only `kept` layers predicts."""
    model.model.layers = torch.nn.ModuleList([layers[k] for k in kept])
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    hits = total = 0
    for ids, start in texts:
        predicted = model(ids, use_cache=False).logits[0, start - 1 : -1].argmax(-1)
        hits += int((predicted == ids[0, start:]).sum())
        total += ids.shape[1] - start
    return hits / total


if __name__ == "__main__":
    main()

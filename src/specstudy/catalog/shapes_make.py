"""Write a shape as a folder that an engine loads with random weights: config.json and a tokenizer of the right size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from specstudy.catalog.assets import once
from specstudy.catalog.paths import cache_dir
from specstudy.catalog.shapes import Shape

CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def shape_folder(shape: Shape, quantization: str | None = None) -> Path:
    """The shape's folder in the user's cache, made if it isn't there. Raises ConfigError for an unknown form.

    The content's hash is part of the name: a shape that changed is made anew.
    """
    config = json.dumps(shape.config_json(quantization), indent=2) + "\n"
    digest = hashlib.sha256(json.dumps([config, CHAT_TEMPLATE, shape.tokens]).encode()).hexdigest()[:8]
    form = shape.name if quantization is None else f"{shape.name}-{quantization}"
    return once(cache_dir() / "shapes" / f"{form}-{digest}", lambda scratch: write_shape(shape, scratch, quantization))


def write_shape(shape: Shape, folder: Path, quantization: str | None = None) -> None:
    """Fill `folder`, which is made, with config.json and, for a target, a tokenizer. Raises ConfigError for an unknown form."""
    config = shape.config_json(quantization)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if shape.kind == "target":
        write_tokenizer(shape.architecture.vocab_size, shape.tokens, folder)


def write_tokenizer(vocab_size: int, tokens: Mapping[str, int], folder: Path) -> None:
    """A tokenizer of `vocab_size` entries (at least 256): one for each byte, the rest filled up with names, `tokens` under theirs.

    Text becomes its bytes, and every token id that random weights may give has a text. The published tokenizer would
    bring nothing: prompts are sent as token ids, and what the model says means nothing.
    """
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    entries = sorted(ByteLevel.alphabet())
    entries += [f"<|{number}|>" for number in range(len(entries), vocab_size)]
    for token, number in tokens.items():
        entries[number] = token
    tokenizer = Tokenizer(BPE(vocab={entry: number for number, entry in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")

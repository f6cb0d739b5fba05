"""Quantize a target with llm-compressor, and measure what that did to its answers. Needs the extra `quantize`, in an environment of its own."""

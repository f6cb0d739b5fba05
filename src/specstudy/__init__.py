"""A reproducible study of speculative decoding in production LLM serving."""

__version__ = "0.1.0"

"""Inference: transformers, vLLM and OpenAI-compatible endpoints behind one small interface."""

from replicata.inference.engine import Engine
from replicata.inference.sampling import Completion, Sampling

__all__ = ["Completion", "Engine", "Sampling"]

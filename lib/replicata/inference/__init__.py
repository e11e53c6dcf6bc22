"""Inference: transformers, vLLM and OpenAI-compatible endpoints behind one small interface."""

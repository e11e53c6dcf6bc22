"""The text and the images: the standard library's sources, C4, and scikit-learn's digits."""

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from replicata.errors import ResourceError

#: Sub-packages that the fine-tuning analogue continues on (spec 5.3).
SHIFTED = ("asyncio", "email", "json", "logging", "unittest", "xml")


@dataclass(frozen=True)
class Corpus:
    """Tokens, split by position: the last tenth is held out."""

    tokens: torch.Tensor
    files: int
    sha256: str

    @property
    def cut(self) -> int:
        """Where the held-out part begins."""
        return len(self.tokens) * 9 // 10


@cache
def standard_library(shifted: bool = False) -> Corpus:
    """Return the bytes of the running interpreter's .py files (PSF licence).

    Another Python version has another corpus: the digest is part of the results.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    if shifted:
        paths = sorted(p for name in SHIFTED for p in (root / name).rglob("*.py"))
    else:
        paths = sorted(root.glob("*.py"))
    data = b"".join(path.read_bytes() for path in paths)
    if len(data) < 100_000:
        raise ResourceError(
            f"{root} has {len(data)} bytes of .py files, expected a standard library of 100,000."
        )
    tokens = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))
    return Corpus(tokens, len(paths), hashlib.sha256(data).hexdigest())


@cache
def c4(tokens: int, tokenizer: str) -> Corpus:
    """Return the first ``tokens`` tokens of C4-en, streamed (profile ``paper``)."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(tokenizer)
    parts, count = [], 0
    for record in load_dataset("allenai/c4", "en", split="train", streaming=True):
        ids = encode(record["text"])["input_ids"]
        parts.append(np.asarray(ids, dtype=np.int32))
        count += len(ids)
        if count >= tokens:
            break
    data = np.concatenate(parts)[:tokens]
    digest = hashlib.sha256(data.tobytes()).hexdigest()
    return Corpus(torch.from_numpy(data), len(parts), digest)


def windows(tokens: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    """Return ``length`` tokens from each start, (len(starts), length)."""
    return tokens[starts[:, None] + torch.arange(length)].long()


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scikit-learn's digits: images (n, 1, 8, 8) and labels, 80 % and 20 %, stratified."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    x, x_test, y, y_test = (torch.from_numpy(np.asarray(part)) for part in parts)

    def shaped(part: torch.Tensor) -> torch.Tensor:
        return part.float().reshape(-1, 1, 8, 8) / 8 - 1

    return shaped(x), y.long(), shaped(x_test), y_test.long()

"""Seeds by hashing: every unit of compute gets its own, and changing one leaves the others."""

import hashlib
import json
from typing import Any


def derive_seed(*parts: Any) -> int:
    """Return a seed that depends on all ``parts`` and on nothing else.

    Parameters
    ----------
    *parts
        JSON values that name the unit: the global seed, the paper, the arm, the replicate.

    Returns
    -------
    int
        Uniform over [0, 2**32): numpy's legacy generator, torch, transformers and vLLM all take it.

    Examples
    --------
    >>> derive_seed(0, "kvfold", "fold", 3) == derive_seed(0, "kvfold", "fold", 3)
    True
    >>> derive_seed(0, "kvfold", "fold", 3) == derive_seed(0, "kvfold", "fold", 4)
    False
    """
    # Every experiment's digest covers this module, so it imports nothing of ours.
    name = json.dumps(parts, sort_keys=True, allow_nan=False).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big")

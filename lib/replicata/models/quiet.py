"""Keep transformers' progress bars out of logs and notebooks."""

import contextlib
from collections.abc import Iterator

from transformers.utils import logging


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch transformers' progress bars off inside the context, and back as they were."""
    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()

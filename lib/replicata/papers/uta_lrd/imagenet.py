"""ImageNet-1k at profile ``paper``: folders of images or the hub's copy, ResNet-50 and ViT-B/16.

The models are transformers' own, with random weights; torchvision is not needed. A step's images
and crops depend on the seed and the step alone, so all arms see the same, and a resume finds them.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from replicata.errors import ResourceError
from replicata.papers.uta_lrd import parallel
from replicata.papers.uta_lrd.experiment import ImagesParams
from replicata.papers.uta_lrd.training import Batch
from replicata.workflow.seeds import derive_seed

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL.Image import Image

#: Mean and standard deviation of ImageNet's channels, on a scale of 0 to 1 (He et al., 1512.03385).
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Range of a random crop's share of the area and of its aspect (Szegedy et al., 1409.4842).
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
READERS = 16


class Logits(nn.Module):
    """A classifier of transformers that returns logits."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of images (n, 3, size, size)."""
        return self.inner(pixel_values=images).logits


def make_image_model(kind: str, own: ImagesParams, classes: int) -> nn.Module:
    """Return ``cnn`` (a bottleneck ResNet) or ``vit``, with the sizes of the params."""
    if kind == "cnn":
        config = ResNetConfig(
            embedding_size=own.resnet_widths[0] // 4,
            hidden_sizes=list(own.resnet_widths),
            depths=list(own.resnet_depths),
            layer_type="bottleneck",
            num_labels=classes,
        )
        return Logits(ResNetForImageClassification(config))
    config = ViTConfig(
        image_size=own.size,
        patch_size=own.vit_patch,
        hidden_size=own.vit_width,
        intermediate_size=4 * own.vit_width,
        num_hidden_layers=own.vit_layers,
        num_attention_heads=own.vit_heads,
        num_labels=classes,
    )
    return Logits(ViTForImageClassification(config))


@cache
def load_images(source: str, split: str) -> "Dataset":
    """Return a split with columns ``image`` and ``label``.

    Parameters
    ----------
    source
        A folder with ``train`` and ``validation``, each with one folder a class, or a data set of
        the hub.

    Raises
    ------
    ResourceError
        If it is neither.
    """
    from datasets import load_dataset

    try:
        if Path(source).is_dir():
            return load_dataset("imagefolder", data_dir=source, split=split)
        return load_dataset(source, split=split)
    # No network, no access, no such split: the library's errors have no common base.
    except Exception as error:
        raise ResourceError(
            f"images {source!r}, split {split!r}: expected a folder with train/ and validation/, "
            f"or a data set of the hub that may be read ({type(error).__name__}: {error})"
        ) from error


def as_tensor(image: "Image") -> torch.Tensor:
    """Return a normalised float tensor (3, height, width)."""
    pixels = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy((pixels - MEAN) / DEVIATION).float().permute(2, 0, 1)


def random_crop(image: "Image", size: int, draw: random.Random) -> torch.Tensor:
    """Return a random resized crop, flipped in half of the cases."""
    from PIL import Image, ImageOps

    image = image.convert("RGB")
    area = image.width * image.height * draw.uniform(*AREA)
    aspect = np.exp(draw.uniform(*np.log(ASPECT)))
    width = min(image.width, max(1, round((area * aspect) ** 0.5)))
    height = min(image.height, max(1, round((area / aspect) ** 0.5)))
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    box = (left, top, left + width, top + height)
    cropped = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return as_tensor(ImageOps.mirror(cropped) if draw.random() < 0.5 else cropped)


def centre_crop(image: "Image", size: int) -> torch.Tensor:
    """Return the central seven eighths of the shorter side, as a square."""
    from PIL import Image

    image = image.convert("RGB")
    side = min(image.width, image.height) * 7 / 8
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return as_tensor(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def train_batch(own: ImagesParams, seed: int, step: int, size: int) -> Batch:
    """Return this process's share of a step's ``size`` images."""
    images = load_images(own.source, "train")
    draw = torch.Generator().manual_seed(derive_seed(seed, "images", step))
    rows = parallel.share(torch.randint(len(images), (size,), generator=draw))

    def read(row: int) -> tuple[torch.Tensor, int]:
        record = images[row]
        crop = random.Random(derive_seed(seed, "crop", step, row))
        return random_crop(record["image"], own.size, crop), record["label"]

    return _stacked(read, rows.tolist())


def fixed_batch(own: ImagesParams, split: str, count: int) -> Batch:
    """Return ``count`` images of a split, equally spaced, cropped in the centre."""
    images = load_images(own.source, split)
    rows = torch.linspace(0, len(images) - 1, min(count, len(images))).long()

    def read(row: int) -> tuple[torch.Tensor, int]:
        record = images[row]
        return centre_crop(record["image"], own.size), record["label"]

    return _stacked(read, rows.tolist())


def _stacked(read: Any, rows: list[int]) -> Batch:
    with ThreadPoolExecutor(READERS) as pool:
        pixels, labels = zip(*pool.map(read, rows), strict=True)
    return torch.stack(pixels), torch.tensor(labels)

"""Image models: a CNN (SGD with momentum) and a ViT (AdamW).

On scikit-learn's 8x8 digits these are small; with ``images`` (`imagenet`) ResNet-50 and ViT-B/16.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

from replicata.papers.uta_lrd import parallel
from replicata.papers.uta_lrd.arms import arm, make_scheduler
from replicata.papers.uta_lrd.data import digits
from replicata.papers.uta_lrd.experiment import Params, VisionParams
from replicata.papers.uta_lrd.training import Batch, Run, micro_batches

PROBE = 256


class ResidualCnn(nn.Module):
    """Two residual blocks of 3x3 convolutions with group norm, about 20k parameters."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
                nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 10) of images (n, 1, 8, 8)."""
        x = functional.avg_pool2d(self.stem(images), 2)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class SmallViT(nn.Module):
    """transformers' ViT: patches of 2, width 32, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = ViTForImageClassification(
            ViTConfig(
                image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2,
                num_attention_heads=4, intermediate_size=64, num_labels=10,
            )
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 10) of images (n, 1, 8, 8)."""
        return self.vit(pixel_values=images).logits


def image_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy with label smoothing 0.1, so that it has a floor to reach."""
    return functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


@torch.no_grad()
def accuracy(run: Run, batch: Batch) -> float:
    """Return the share of right answers on a batch."""
    run.model.eval()
    right = sum(int((run.model(x).argmax(-1) == y).sum()) for x, y in micro_batches(run, batch))
    run.model.train()
    return right / len(batch[0])


def vision_runs(params: Params, seed: int) -> Iterator[tuple[dict[str, Any], Run, Batch]]:
    """Yield every model and arm of a seed, with the context of its rows and the test images.

    ``peaks`` are the CNN's (SGD with momentum 0.9) and the ViT's (AdamW), the same in all arms.
    """
    study = params.vision
    source = _digits(study, seed) if study.images is None else _images(study, seed)
    for kind, peak in zip(("cnn", "vit"), study.peaks, strict=True):
        for name in study.arms:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = source.make(kind).to(params.device)
            if kind == "cnn":
                optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9)
            else:
                optimizer = torch.optim.AdamW(
                    model.parameters(), lr=peak, weight_decay=source.weight_decay
                )
            schedule = make_scheduler(
                arm(name), optimizer, study.steps, int(params.warmup * study.steps),
                params.final_ratio,
            )  # fmt: skip
            run = Run(model, optimizer, schedule, image_loss, source.at, source.probe, study.steps,
                      micro=params.micro_batch, bf16=params.bf16, device=params.device)  # fmt: skip
            yield {"arm": name, "model": kind, "peak": peak}, run, source.test


@dataclass(frozen=True)
class Source:
    """Where a seed's images come from, and the models for them."""

    make: Callable[[str], nn.Module]
    at: Callable[[int], Batch]
    probe: Batch
    test: Batch
    weight_decay: float


def _digits(study: VisionParams, seed: int) -> Source:
    x, y, x_test, y_test = digits()
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(x), (study.steps, study.batch), generator=draw)
    probe = torch.randint(len(x), (PROBE,), generator=draw)

    def at(step: int) -> Batch:
        rows = parallel.share(drawn[step])
        return x[rows], y[rows]

    def make(kind: str) -> nn.Module:
        return ResidualCnn() if kind == "cnn" else SmallViT()

    return Source(make, at, (x[probe], y[probe]), (x_test, y_test), weight_decay=0.01)


def _images(study: VisionParams, seed: int) -> Source:
    # Imported here: profile paper only.
    from replicata.papers.uta_lrd import imagenet

    own = study.images
    classes = imagenet.load_images(own.source, "train").features["label"].num_classes

    def at(step: int) -> Batch:
        return imagenet.train_batch(own, seed, step, study.batch)

    return Source(
        lambda kind: imagenet.make_image_model(kind, own, classes),
        at,
        imagenet.fixed_batch(own, "train", PROBE),
        imagenet.fixed_batch(own, "validation", own.held_out),
        weight_decay=0.1,  # spec 5.5
    )

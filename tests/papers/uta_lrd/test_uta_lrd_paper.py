"""What profile paper adds, with tiny models and data of the same form: ImageNet and TRL."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import TrainerCallback

from replicata.errors import ResourceError
from replicata.papers.uta_lrd import imagenet, sft, studies
from replicata.papers.uta_lrd.baselines import SHAPES
from replicata.papers.uta_lrd.experiment import Params, cells
from replicata.papers.uta_lrd.experiment import run as run_cell
from replicata.papers.uta_lrd.method import UTASchedule
from replicata.papers.uta_lrd.preflight import cost_estimate, preflight
from replicata.workflow.params import load_params

COLOURS = {"blue": (20, 20, 220), "red": (220, 20, 20)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in ImageNet's layout: red ones and blue ones, of several sizes."""
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("validation", 4)):
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True)
            for k in range(count):
                shape = (int(draw.integers(20, 60)), int(draw.integers(20, 60)), 3)
                pixels = np.clip(draw.normal(colour, 20, shape), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{k}.png")
    return root


def small(folder: Path, **changes: object) -> Params:
    raw = load_params("uta_lrd", "smoke").model_dump(mode="json")
    images = {
        "source": str(folder),
        "size": 32,
        "resnet_widths": [8, 16],
        "resnet_depths": [1, 1],
        "vit_patch": 8,
        "vit_width": 16,
        "vit_layers": 1,
        "vit_heads": 2,
        "held_out": 8,
    }
    raw["vision"] |= {"images": images, "steps": 24, "batch": 8, "seeds": 2, "seeds_per_cell": 1}
    raw["vision"]["peaks"] = [0.05, 0.003]
    raw["vision"]["arms"] = ["cosine", "uta"]
    return Params.model_validate_json(json.dumps(raw | changes))


def test_resnet_50_and_vit_b_have_their_published_sizes() -> None:
    """25.56 and 86.57 million parameters (He et al. 2015; Dosovitskiy et al. 2020)."""
    own = load_params("uta_lrd", "paper").vision.images
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in imagenet.make_image_model(kind, own, 1000).parameters())
            for kind in ("cnn", "vit")
        ]
    assert sizes == [25_557_032, pytest.approx(86_567_656, rel=0.001)]


def test_images_depend_on_seed_and_step_alone(folder: Path) -> None:
    own = small(folder).vision.images
    x, y = imagenet.train_batch(own, 1, 5, 8)
    again = imagenet.train_batch(own, 1, 5, 8)
    assert x.shape == (8, 3, 32, 32)
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert not torch.equal(x, imagenet.train_batch(own, 1, 6, 8)[0])
    assert not torch.equal(x, imagenet.train_batch(own, 2, 5, 8)[0])
    labels = {tuple(imagenet.train_batch(own, 1, step, 8)[1].tolist()) for step in range(6)}
    assert len(labels) > 1  # other images in other steps, not only other crops
    # Labels are the folders' (blue 0, red 1), whatever the crop.
    assert ((x[:, 0].mean((1, 2)) > x[:, 2].mean((1, 2))) == y.bool()).all()


def test_pixels_are_normalised_and_the_centre_is_kept() -> None:
    pixels = np.zeros((80, 160, 3), dtype=np.uint8)
    pixels[5:75, 45:115] = 255  # seven eighths of the shorter side, in the middle
    found = imagenet.centre_crop(Image.fromarray(pixels), 14)
    expected = (1 - torch.tensor(imagenet.MEAN)) / torch.tensor(imagenet.DEVIATION)
    # Bilinear resampling mixes the outermost pixels with what lies beside them.
    inner = found[:, 1:-1, 1:-1]
    torch.testing.assert_close(inner, expected[:, None, None].expand(3, 12, 12))


def test_the_image_models_learn_by_the_same_functions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "repo_root", lambda: tmp_path)
    params = small(folder, checkpoints="checkpoints", micro_batch=4)
    cell = next(c for c in cells(params) if c.group == "vision")
    table = run_cell(params, cell)
    right = table[table["metric"] == "accuracy"].set_index(["model", "arm"])["value"]
    assert set(right.index) == {(m, a) for m in ("cnn", "vit") for a in ("cosine", "uta")}
    assert right["vit"].min() == 1.0  # the ResNet's batch norms need more than 24 steps
    assert len(list((tmp_path / "checkpoints").glob("vision-*.pt"))) == 4


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(
        ResourceError, match=r"images './nowhere', split 'train': expected a folder"
    ):
        imagenet.load_images("./nowhere", "train")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    words = ["red", "green", "blue", "one", "two", "three"]
    draw = np.random.default_rng(1)
    path.write_text(
        "".join(json.dumps({"text": " ".join(draw.choice(words, 20))}) + "\n" for _ in range(40))
    )
    return path


def fine_tuning(texts: Path, **changes: object) -> Params:
    raw = load_params("uta_lrd", "smoke").model_dump(mode="json")
    raw["finetune"] = {"arms": ["cosine", "uta"], "peaks": [0.003], "tuning": 0, "seeds": 2,
                       "seeds_per_cell": 1, "steps": 18, "batch": 4, "model": "tiny-llama",
                       "source": str(texts), "sequence": 32, "held_out": 8, "probe": 4,
                       "micro_batch": 2} | changes  # fmt: skip
    return Params.model_validate_json(json.dumps(raw))


class Rates(TrainerCallback):
    """Notes the learning rate that each update uses."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_pre_optimizer_step(
        self,
        args: object,
        state: object,
        control: object,
        optimizer: torch.optim.Optimizer,
        **kwargs: object,
    ) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_trl_fine_tunes_under_the_schedule(texts: Path, tmp_path: Path) -> None:
    """Accumulation of two micro-batches; the rates are those of the closed form or the loop."""
    params = fine_tuning(texts)
    found: dict[str, list[float]] = {}
    for name in params.finetune.arms:
        trainer = sft.make_trainer(params, name, 3, str(tmp_path))
        settings = trainer.args
        assert settings.per_device_train_batch_size * settings.gradient_accumulation_steps == 4
        rates = Rates()
        trainer.add_callback(rates)
        trained = trainer.train()
        found[name] = rates.rates
        assert trainer.state.global_step == 18
        if name == "uta":
            schedule = trainer.lr_scheduler
            assert isinstance(schedule, UTASchedule)
            assert sum(schedule.losses) / 18 == pytest.approx(trained.training_loss, rel=1e-3)
            assert [entry["step"] for entry in schedule.history] == schedule.boundaries
            assert schedule.losses[-1] < schedule.losses[0]
    cosine = [0.003 * t if t < 1 else 0.003 * (0.1 + 0.9 * SHAPES["cosine"]((t - 1) / 17))
              for t in range(18)]  # fmt: skip
    assert found["cosine"] == pytest.approx(cosine)
    assert found["uta"][:2] == [0.0, 0.003]
    assert found["uta"] != pytest.approx(cosine)


def test_fine_tuning_gives_the_rows_of_its_claim(texts: Path) -> None:
    params = fine_tuning(texts)
    cell = next(c for c in cells(params) if c.group == "finetune")
    one, two = run_cell(params, cell), run_cell(params, cell)
    losses = one[one["metric"] == "loss"].set_index("arm")["value"]
    assert set(losses.index) == {"cosine", "uta"}
    assert one["value"].tolist() == two["value"].tolist()


def test_too_few_texts_are_named(texts: Path) -> None:
    with pytest.raises(ResourceError, match="40 records, expected more than the 40"):
        sft.load_texts(str(texts), 40)


def test_the_papers_params_say_what_is_missing_and_what_it_costs() -> None:
    params = load_params("uta_lrd", "paper")
    assert "ImageNet" in cost_estimate(params)
    if not torch.cuda.is_available():
        assert any("devices" in sentence for sentence in preflight(params))

"""What the check before a paper-scale run says about devices."""

import psutil
import pytest
import torch

from replicata.models.devices import check_device


def test_a_sufficient_cpu_has_no_problems():
    assert check_device("cpu", 0.01) == []


def test_too_little_memory_is_named_with_both_numbers():
    (sentence,) = check_device("cpu", 1e6)
    free = psutil.virtual_memory().available / 2**30
    assert sentence.startswith("device cpu: ")
    assert sentence.endswith(" GiB of memory free, expected 1e+06")
    assert float(sentence.split()[2]) == pytest.approx(free, abs=2)


def test_an_unknown_device_is_named():
    assert check_device("quantum", 1) == [
        "device 'quantum': unknown, expected a torch device such as 'cpu' or 'cuda:0'"
    ]
    assert check_device("meta", 1) == ["device meta: only 'cpu' and 'cuda' devices are supported"]


def test_a_missing_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (sentence,) = check_device("cuda:1", 1)
    assert "no usable CUDA GPU" in sentence
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * 2**30, 80 * 2**30))
    assert check_device("cuda:1", 1) == ["device cuda:1: this machine has 1 CUDA GPU(s)"]
    assert check_device("cuda:0", 40) == []
    assert check_device("cuda", 41) == ["device cuda: 40.0 GiB of memory free, expected 41"]

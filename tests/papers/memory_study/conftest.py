"""A registration that needs no files: seeds by hashing, and a protocol of a few worlds."""

import hashlib

import pytest

from replicata.preregistration.protocol import validate_protocol

MEMORIES = {
    "unlucky.indep": ["own", "opp", "irr", "instr", "scr", "scr_opp", "note", "shared"],
    "lucky.indep": ["own", "irr", "scr"],
    "unlucky.unstated": ["own", "irr"],
}
CONTROLS = {"unlucky.indep": ["own", "irr"], "lucky.indep": ["own", "irr"]}


class Registered:
    """What the study's functions use of a registration."""

    def __init__(self, seed: int = 0, worlds: int = 8, **settings: object) -> None:
        self._seed = seed
        endpoints = {
            "model": {"kind": "local", "pin": "tiny:0"},
            "control_ideal": {"kind": "synthetic", "pin": "1"},
            "control_gullible": {"kind": "synthetic", "pin": "1"},
        }
        self.protocol = validate_protocol(
            {
                "schema": 1,
                "study": "toy",
                "profile": "smoke",
                "title": "toy",
                "hypotheses": [
                    {
                        "id": "c1",
                        "statement": "s",
                        "status": "descriptive",
                        "estimand": "e",
                        "test": "t",
                    }
                ],
                "sample": {"rule": "all", "units": worlds, "planned_cells": 1},
                "exclusions": {"rule": "none", "max_share": 0.05},
                "endpoints": endpoints,
                "analysis": {"entry_point": "replicata.papers.memory_study.registration:STUDY"},
                "seeds": {"rule": "fixed", "global_seed": seed},
                "stopping": "none",
                "power": {"statement": "none"},
                "pilot": {"disclosure": "none"},
                "access": "none",
                "timestamp": {"authority": "local"},
                "settings": {
                    "worlds": worlds,
                    "shard_worlds": 4,
                    "writing": "guided",
                    "free_blocks": 0,
                    "memories": MEMORIES,
                    "control_memories": CONTROLS,
                    "dtype": "float32",
                    "replay_tolerance": 1e-3,
                    **settings,
                },
            },
            "draft.yaml",
        )

    def seed(self, unit: str) -> int:
        text = f"{self._seed} {unit}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@pytest.fixture(scope="session")
def registered():
    return Registered

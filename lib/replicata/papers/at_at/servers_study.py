"""Study S2: three MCP servers with planted defects, a mechanism test of AT-AT's edits.

One copy of a server (a defect seed) is traced on training requests as it is; each arm edits its
tools from these traces, and the agent is evaluated on held-out requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import Client

from replicata.errors import UsageError
from replicata.papers.at_at import baselines, catalogue
from replicata.papers.at_at.agent import Router, Run
from replicata.papers.at_at.coder import Endpoint, code
from replicata.papers.at_at.edits import IMPLEMENTATION_KINDS, Edit, Policy
from replicata.papers.at_at.encoder import Encodes
from replicata.papers.at_at.experiment import CoderParams
from replicata.papers.at_at.method import Optimised, atat
from replicata.papers.at_at.miner import error_kind, propose
from replicata.papers.at_at.servers import Database, ServerSpec, Variant, handler
from replicata.papers.at_at.serving import build_server, list_tools
from replicata.papers.at_at.tasks import Task, make_tasks
from replicata.papers.at_at.tools import Tool, tools_sha256
from replicata.papers.at_at.traces import Trace
from replicata.papers.at_at.wrappers import trimmed, wrap
from replicata.workflow.files import digest
from replicata.workflow.seeds import derive_seed

ARMS = ("base", "static", "prompt", "desc", "impl", "passfail", "placebo", "oracle")
#: The language-model optimiser, where an endpoint is given.
CODER = "coder"


def arms(with_coder: bool) -> tuple[str, ...]:
    """Return the arms to run."""
    return (*ARMS, CODER) if with_coder else ARMS


@dataclass(frozen=True)
class Arm:
    """What an arm ended with: traces on held-out tasks, the edits, and the calls it cost."""

    traces: tuple[Trace, ...]
    optimised: Optimised | None = None
    rollouts: int = 0


class Copy:
    """One copy of a server with its planted defects, and the agent on it."""

    def __init__(
        self,
        spec: ServerSpec,
        defect_seed: int,
        encoder: Encodes,
        *,
        seed: int,
        train_per_tool: int,
        heldout_per_tool: int,
    ) -> None:
        self.spec, self.encoder = spec, encoder
        self.seed = derive_seed(seed, "copy", spec.name, defect_seed)
        self.plants = catalogue.draw(spec, defect_seed, seed)
        self.variant = catalogue.plant(spec, self.plants)
        self.train = make_tasks(spec, "train", train_per_tool, seed)
        self.heldout = make_tasks(spec, "heldout", heldout_per_tool, seed)
        self.tools = anyio.run(self._listed)
        self.traces = self.trace(self.train, "train")

    async def _listed(self) -> tuple[Tool, ...]:
        database = Database(self.spec, self.variant)
        async with Client(build_server(self.spec, self.variant, database)) as client:
            return await list_tools(client)

    def trace(
        self,
        tasks: Sequence[Task],
        split: str,
        tools: Sequence[Tool] | None = None,
        *,
        variant: Variant | None = None,
        prefix: str = "",
    ) -> tuple[Trace, ...]:
        """Run the agent on tasks, each on a fresh database."""
        chosen = variant or self.variant
        database = Database(self.spec, chosen)
        server = build_server(self.spec, chosen, database, tools)
        router = Router(self.encoder, prefix)

        async def run() -> list[Trace]:
            found = []
            async with Client(server) as client:
                listed = await list_tools(client)
                shown = tools_sha256(listed)
                characters = sum(tool.characters() for tool in listed)
                for task in tasks:
                    database.reset()
                    done = await router.run(client, listed, task.request)
                    found.append(
                        self._evaluated(task, split, done, database.changes(), shown, characters)
                    )
            return found

        return tuple(anyio.run(run))

    def _evaluated(
        self,
        task: Task,
        split: str,
        done: Run,
        changes: list[list[Any]],
        shown: str,
        characters: int,
    ) -> Trace:
        found = all(value in done.answer for value in task.values)
        call = {"tool": task.tool, "args": task.args}
        first = done.steps[0]
        checks = [
            {"name": "call", "ok": first.tool == task.tool, "expected": call, "got": first.tool},
            {"name": "values", "ok": found, "expected": list(task.values)},
            {"name": "state", "ok": changes == task.changes, "expected": task.changes},
        ]
        return Trace.model_validate(
            {
                "trace_id": f"{task.id}.{split}",
                "server": self.spec.name,
                "tools_sha256": shown,
                "agent": {"id": "router"},
                "task_id": task.id,
                "split": split,
                "request": task.request,
                "steps": [step.model_dump() for step in done.steps],
                "final": {"answer": done.answer, "state_sha256": digest(changes)},
                "eval": {"pass": found and changes == task.changes, "checks": checks},
                "cost": {
                    "calls": len(done.steps),
                    "chars_in": characters,
                    "chars_out": sum(step.chars for step in done.steps),
                },
            }
        )

    def run(self, arm: str, coder: CoderParams | None = None) -> Arm:
        """Optimise with one arm, and evaluate on the held-out tasks."""
        if arm == "base":
            return Arm(self.trace(self.heldout, "heldout"))
        if arm == "oracle":
            fixed = catalogue.repaired(self.spec, self.plants)
            return Arm(self.trace(self.heldout, "heldout", variant=fixed))
        if arm == "static":
            tools = baselines.static_descriptions(self.tools)
            return Arm(self.trace(self.heldout, "heldout", tools))
        if arm == "prompt":
            return self._prompt()
        policy = Policy(implementations=arm in ("impl", "passfail", CODER))
        edits = self._coded(coder, policy) if arm == CODER else self._proposals(arm, policy)
        optimised = atat(self.tools, edits, policy, [self.differential_gate])
        return Arm(self.trace(self.heldout, "heldout", optimised.tools), optimised)

    def _proposals(self, arm: str, policy: Policy) -> list[Edit]:
        traces = self.traces
        if arm == "passfail":
            traces = tuple(trace.at_level("passfail") for trace in traces)
        edits = propose(traces, self.tools, self.encoder, implementations=policy.implementations)
        if arm == "placebo":
            appended = [edit for edit in edits if edit.param is None]
            return baselines.placebo(appended, self.tools, self.seed)
        return edits

    def _coded(self, coder: CoderParams | None, policy: Policy) -> list[Edit]:
        if coder is None:
            raise UsageError("the arm coder needs the params' section coder: an endpoint")
        chat = Endpoint.open(coder.base_url, coder.model, coder.api_key_env, coder.temperature)
        return code(chat, self.traces, self.tools, policy, self.seed, turns=coder.turns).edits

    def _prompt(self) -> Arm:
        passed, rollouts = [], 0
        for prefix in baselines.PREFIXES:
            traces = self.trace(self.train, "train", prefix=prefix) if prefix else self.traces
            rollouts += len(traces) if prefix else 0
            passed.append(sum(trace.passed for trace in traces))
        chosen = baselines.PREFIXES[passed.index(max(passed))]
        return Arm(self.trace(self.heldout, "heldout", prefix=chosen), rollouts=rollouts)

    def differential_gate(
        self, edit: Edit, before: Sequence[Tool], after: Sequence[Tool]
    ) -> str | None:
        """Refuse an implementation edit that changes what a recorded successful call does.

        Recorded calls are made again on fresh databases, without the agent. Results must be the
        same but for removed fields, and rows that a raised limit adds; states must be the same.
        """
        if edit.kind not in IMPLEMENTATION_KINDS:
            return None
        calls = [
            step.args
            for trace in self.traces
            for step in trace.steps
            if trace.passed and step.tool == edit.tool and error_kind(step) is None
        ]
        for args in calls:
            was, is_now = (self._replayed(edit.tool, args, tools) for tools in (before, after))
            if edit.kind == "trim_output":
                was = (trimmed(was[0], edit.text.split(",")), was[1])
            if was != is_now and edit.kind != "raise_limit":
                return f"a recorded call of {edit.tool} gives another result: {args}"
        return None

    def _replayed(
        self, name: str, args: dict[str, Any], tools: Sequence[Tool]
    ) -> tuple[str, list[list[Any]]]:
        database = Database(self.spec, self.variant)
        tool = next(tool for tool in tools if tool.name == name)
        run = wrap(handler(self.spec, self.spec.tool(name), self.variant, database), tool.wrappers)
        return run(dict(args)), database.changes()


def repaired_plants(copy: Copy, accepted: Sequence[Edit]) -> set[catalogue.Plant]:
    """Return the planted defects that an accepted edit of a fitting kind addresses."""
    kinds = {(edit.tool, edit.kind) for edit in accepted}
    return {
        plant
        for plant in copy.plants
        if any((plant.tool, kind) in kinds for kind in catalogue.REPAIRS[plant.defect])
    }


def fitting_edits(copy: Copy, accepted: Sequence[Edit]) -> int:
    """Return how many accepted edits address a planted defect of their tool."""
    repairs = {plant.tool: catalogue.REPAIRS[plant.defect] for plant in copy.plants}
    return sum(edit.kind in repairs.get(edit.tool, ()) for edit in accepted)

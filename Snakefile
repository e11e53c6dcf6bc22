"""All papers, one pipeline: cells -> claims -> notebook, then the report and the audit.

`snakemake` runs what is not current at profile cpu; `--config profile=smoke root=rerun papers=a,b`
runs part of it. What is current is decided by content in lib/replicata/workflow/plan.py.
"""

import os
import sys
from pathlib import Path

# The code beside this file runs, by the Python that runs Snakemake, whatever else is installed.
LIB = os.path.join(workflow.basedir, "lib")
sys.path.insert(0, LIB)
os.environ.update(
    PYTHONPATH=os.pathsep.join(filter(None, [LIB, os.getenv("PYTHONPATH")])),
    PATH=os.pathsep.join([os.path.dirname(sys.executable), os.getenv("PATH", "")]),
)

from replicata.errors import ReplicataError
from replicata.workflow.plan import Plan
from replicata.workflow.processes import die_with_parent

if workflow.is_main_process and os.getenv("REPLICATA_RUN"):
    die_with_parent(int(os.getenv("REPLICATA_RUN")))

try:
    PLAN = Plan.from_config(config)
    PLAN.write_markers(fresh=workflow.is_main_process)
    if workflow.is_main_process and workflow.executor_plugin and not workflow.dryrun:
        PLAN.hold()
except ReplicataError as error:
    raise WorkflowError(str(error))

OUT = f"{PLAN.root}/{PLAN.profile}"
LOGS = f"logs/{Path(PLAN.root).name}/{PLAN.profile}"
JOB = f"--profile {PLAN.profile} --root {PLAN.root}"
ENVIRONMENT = "requirements/conda.yaml"


wildcard_constraints:
    paper="[a-z][a-z0-9_]*",
    cell="[a-z0-9][a-z0-9._-]*",


rule all:
    input:
        PLAN.targets(),


rule cells:
    input:
        params=ancient(f"params/{{paper}}/{PLAN.profile}.yaml"),
        stale=PLAN.stale_cell,
    output:
        table=f"{OUT}/{{paper}}/cells/{{cell}}.parquet",
        receipt=f"{OUT}/{{paper}}/receipts/cells/{{cell}}.json",
    log:
        f"{LOGS}/{{paper}}/cells/{{cell}}.log",
    benchmark:
        f"{LOGS}/{{paper}}/cells/{{cell}}.tsv"
    priority: PLAN.priority
    threads: PLAN.threads
    resources:
        mem_mb=PLAN.memory_mb,
    params:
        job=JOB,
        cores=lambda wildcards: PLAN.cell(wildcards).threads,
    conda:
        ENVIRONMENT
    shell:
        "exec python -m replicata job cell --parent $PPID {params.job} --paper {wildcards.paper}"
        " --cell {wildcards.cell} --threads {params.cores} > {log} 2>&1"


rule claims:
    input:
        tables=PLAN.claims_input,
        stale=PLAN.stale_claims,
    output:
        claims=report(f"{OUT}/{{paper}}/claims.json", category="{paper}"),
        figures=report(
            directory(f"{OUT}/{{paper}}/figures"),
            patterns=["{figure}.png"],
            category="{paper}",
        ),
        receipt=f"{OUT}/{{paper}}/receipts/claims.json",
    log:
        f"{LOGS}/{{paper}}/claims.log",
    benchmark:
        f"{LOGS}/{{paper}}/claims.tsv"
    priority: 1000
    params:
        job=JOB,
    conda:
        ENVIRONMENT
    shell:
        "exec python -m replicata job claims --parent $PPID {params.job} --paper {wildcards.paper}"
        " > {log} 2>&1"


rule notebook:
    input:
        source=ancient("notebooks/{paper}.ipynb"),
        claims=PLAN.notebook_input,
        stale=PLAN.stale_notebook,
    output:
        notebook=report(f"{OUT}/{{paper}}/notebook.ipynb", category="{paper}"),
        manifest=f"{OUT}/{{paper}}/manifest.json",
        receipt=f"{OUT}/{{paper}}/receipts/notebook.json",
    log:
        f"{LOGS}/{{paper}}/notebook.log",
    benchmark:
        f"{LOGS}/{{paper}}/notebook.tsv"
    priority: 1000
    params:
        job=JOB,
    conda:
        ENVIRONMENT
    shell:
        "exec python -m replicata job notebook --parent $PPID {params.job}"
        " --paper {wildcards.paper} > {log} 2>&1"


rule report:
    input:
        notebooks=PLAN.report_input,
        stale=PLAN.stale_report,
    output:
        page=report(f"{OUT}/report.html", category="overview"),
        receipt=f"{OUT}/receipts/report.json",
    log:
        f"{LOGS}/report.log",
    benchmark:
        f"{LOGS}/report.tsv"
    params:
        job=JOB,
    conda:
        ENVIRONMENT
    shell:
        "exec python -m replicata job report --parent $PPID {params.job} > {log} 2>&1"


rule audit:
    input:
        notebooks=PLAN.audit_input,
        stale=PLAN.stale_audit,
    output:
        page=report(f"{OUT}/audit.json", category="overview"),
        receipt=f"{OUT}/receipts/audit.json",
    log:
        f"{LOGS}/audit.log",
    benchmark:
        f"{LOGS}/audit.tsv"
    params:
        job=JOB,
    conda:
        ENVIRONMENT
    shell:
        "exec python -m replicata job audit --parent $PPID {params.job} > {log} 2>&1"

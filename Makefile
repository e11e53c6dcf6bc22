# Two commands matter: `make` reruns everything and compares, `make test` runs the tests.
# Every target first brings .venv to what LOCK and pyproject.toml ask for; when it is, that takes
# a fraction of a second. `make help` lists the targets and the variables.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := rerun

PAPER ?=#                          one slug or several; empty: all papers
PROFILE ?= cpu#                    smoke, cpu or paper
CORES ?=#                          how many cores to use; empty: all of this machine
LOCK ?= requirements/cpu.txt#      requirements/gpu.txt for the paper profile
PYTHON ?= $(firstword $(shell command -v python3.11 || command -v python3) python3.11)#  a Python 3.11
PIP_FLAGS ?=#                      passed to every pip call, for example to name an index

override PAPER := $(strip $(PAPER))
override PROFILE := $(strip $(PROFILE))
override CORES := $(strip $(CORES))
override LOCK := $(strip $(LOCK))

# A run takes its cells with it when make is killed: the shell is replaced by the run (exec), and
# the run ends with its parent, which is make.
RUN = exec env REPLICATA_DIE_WITH_PARENT=1
REPLICATA = .venv/bin/python -m replicata
CORES_FLAG = $(if $(CORES),--cores $(CORES))

.PHONY: rerun results report test lint environment clean help

rerun: environment ## run PAPER at PROFILE into rerun/, then compare with the committed results
	@$(RUN) $(REPLICATA) run $(PAPER) --profile $(PROFILE) --root rerun $(CORES_FLAG)

results: environment ## run PAPER at PROFILE into results/, the committed reference
	@$(RUN) $(REPLICATA) run $(PAPER) --profile $(PROFILE) --root results $(CORES_FLAG)

report: environment ## write results/PROFILE/report.html, the front page, from what is there
	@$(RUN) $(REPLICATA) report --profile $(PROFILE)

test: environment ## run the tests, with every paper's pipeline at the smoke profile
	@.venv/bin/python -m pytest

lint: environment ## check the style of the code
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

environment: ## build .venv from LOCK; an interrupted build goes on where it was
	@$(RUN) '$(PYTHON)' requirements/install.py '$(LOCK)' -- $(PIP_FLAGS)

clean: ## remove what runs leave outside the reference (rerun/, results/smoke/, logs), not .venv
	@rm -rf rerun results/smoke logs .snakemake .pytest_cache .ruff_cache .hypothesis

help: ## show this list
	@echo "targets:"
	@sed -n 's/^\([a-z]*\):.* ## \(.*\)/  \1\t\2/p' Makefile | expand -t 16
	@echo "variables (make NAME=value):"
	@sed -n 's/^\([A-Z_]*\) ?=.*#  *\(.*\)/  \1\t\2/p' Makefile | expand -t 16

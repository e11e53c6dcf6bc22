"""Workflow: params, cells, receipts, the notebook runner, the report: what runs the papers."""

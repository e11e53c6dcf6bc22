"""replicata: twelve papers, replicated by notebooks whose every verdict can be re-derived."""

__version__ = "0.1.0"

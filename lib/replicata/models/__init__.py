"""Models: tiny ones from configs, packaged small LLMs, hub models, through one ``load_model``."""

from replicata.models.cache import cache_dir
from replicata.models.loading import LoadedModel, load_model, model_directory

__all__ = ["LoadedModel", "cache_dir", "load_model", "model_directory"]

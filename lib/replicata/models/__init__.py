"""Models: tiny ones from configs, packaged small LLMs, hub models, through one ``load_model``."""

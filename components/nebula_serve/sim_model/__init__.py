"""A model folder for the `sim` engine: tokenizer, chat template and configuration, no weights, no hub."""

from nebula_serve.sim_model.model_folder import SPECIAL_TOKENS, ensure_sim_model

__all__ = ["SPECIAL_TOKENS", "ensure_sim_model"]

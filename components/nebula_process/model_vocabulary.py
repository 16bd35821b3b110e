"""How many token ids a model has, from the configuration in its folder."""

from pathlib import Path
from typing import cast

import msgspec


def read_vocabulary_tokens(model_path: str) -> int | None:
    """The model's token ids are below it; None where no configuration says so."""
    try:
        config = msgspec.json.decode((Path(model_path) / "config.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    for part in (config, config.get("text_config") if isinstance(config, dict) else None):
        size = cast("dict[str, object]", part).get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and size > 0:
            return size
    return None

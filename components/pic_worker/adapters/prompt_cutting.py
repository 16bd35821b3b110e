"""The worker's cutter, from its settings and the model's tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer

from nebula_protocol.cut_settings import make_cutter_config
from nebula_protocol.errors import ProtocolError
from nebula_protocol.ids import DomainId
from pic_worker.errors import StartError
from pic_worker.prompt_cutter import PromptCutter, SaltedHasher
from pic_worker.settings import WorkerSettings


def load_tokenizer(settings: WorkerSettings) -> Tokenizer:
    """
    Raises:
        StartError: the model's folder has none.
    """
    path = Path(settings.model_path) / "tokenizer.json"
    if not path.is_file():
        raise StartError(f"there is no tokenizer at {path}")
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return token_ids


def make_cutter(
    settings: WorkerSettings, tokenizer: Tokenizer, domain_id: DomainId, hash_salted: SaltedHasher
) -> PromptCutter:
    """
    Raises:
        StartError: the tokenizer does not know a mark that prompts are to be cut at.
    """
    try:
        config = make_cutter_config(settings.cut, lambda text: encode_text(tokenizer, text))
    except ProtocolError as error:
        raise StartError(str(error)) from error
    return PromptCutter(
        config=config,
        block_size_tokens=settings.block_size_tokens,
        domain_id=domain_id,
        pic=settings.pic,
        hash_salted=hash_salted,
    )

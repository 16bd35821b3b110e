from pathlib import Path

from nebula_serve.sim_model.model_folder import packaged_folder
from nebula_serve.sim_model.train import read_passages, train_tokenizer


def test_training_again_gives_the_shipped_tokenizer_byte_for_byte(shared_dir: Path) -> None:
    trained = train_tokenizer(read_passages(shared_dir / "data" / "passages.jsonl.gz"))
    assert trained.to_str(pretty=False) == (packaged_folder() / "tokenizer.json").read_text(encoding="utf-8")

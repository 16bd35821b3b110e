"""The size of a model's vocabulary, from its folder."""

from pathlib import Path

import pytest

from nebula_process.model_vocabulary import read_vocabulary_tokens


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ('{"vocab_size": 7}', 7),
        ('{"text_config": {"vocab_size": 8}}', 8),
        ('{"vocab_size": 7, "text_config": {"vocab_size": 8}}', 7),
        ('{"vocab_size": "7"}', None),
        ('{"text_config": []}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_it_is_read_where_the_configuration_has_it(tmp_path: Path, config: str, size: int | None) -> None:
    (tmp_path / "config.json").write_text(config)
    assert read_vocabulary_tokens(str(tmp_path)) == size


def test_without_a_configuration_it_is_not_known(tmp_path: Path) -> None:
    assert read_vocabulary_tokens(str(tmp_path)) is None

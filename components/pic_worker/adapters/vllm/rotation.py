"""Moves rotated keys to other positions.

RoPE turns each pair of a key's dimensions by its position times the pair's frequency; turns add up, so a key at one
position becomes the key at another by a turn of the difference.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Turn:
    """What moves a row of keys, each by its own difference. Holds [tokens, 1, pairs] twice, in fp32."""

    cos: torch.Tensor
    sin: torch.Tensor
    moved: torch.Tensor
    """[tokens, 1, 1]; keys that do not move keep every bit."""
    moves_any: bool
    is_neox: bool

    def apply(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys [tokens, heads, dimension], turned in fp32 and rounded once; the dimensions behind the pairs stay."""
        if not self.moves_any:
            return keys
        num_rotated = 2 * self.cos.shape[-1]
        rotated = keys[..., :num_rotated].float()
        if self.is_neox:
            a, b = rotated.chunk(2, dim=-1)
            turned = torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1)
        else:
            a, b = rotated[..., ::2], rotated[..., 1::2]
            turned = torch.stack([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1).flatten(-2)
        turned = torch.where(self.moved, turned, rotated).to(keys.dtype)
        return torch.cat([turned, keys[..., num_rotated:]], dim=-1)


class KeyRotation:
    """A model's RoPE, seen from its keys."""

    def __init__(self, frequencies: torch.Tensor, *, is_neox: bool, device: torch.device) -> None:
        """
        Args:
            frequencies: [pairs], radians a position, as the model scales them.
            is_neox: a pair is dimensions i and i + pairs; otherwise 2 i and 2 i + 1.
        """
        # A difference of 100,000 positions leaves an fp32 angle only two exact decimals.
        self._frequencies = frequencies.to(device, torch.float64)
        self._is_neox = is_neox

    def turn(self, differences: torch.Tensor) -> Turn:
        """Of new less old positions, [tokens]."""
        by = differences.to(self._frequencies.device)
        angles = by[:, None, None].double() * self._frequencies
        return Turn(
            cos=angles.cos().float(),
            sin=angles.sin().float(),
            moved=(by != 0)[:, None, None],
            moves_any=bool((by != 0).any()),
            is_neox=self._is_neox,
        )

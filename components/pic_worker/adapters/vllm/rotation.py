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
    stays: torch.Tensor
    """Indices of keys that do not move: they keep every bit."""
    is_neox: bool

    def apply(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys [tokens, heads, dimension], turned in fp32 and rounded once; the dimensions behind the pairs stay."""
        if len(self.stays) == len(keys):
            return keys
        num_rotated = 2 * self.cos.shape[-1]
        before = keys[..., :num_rotated].float()
        after = torch.empty_like(before)
        (a, b), (new_a, new_b) = self._pairs(before), self._pairs(after)
        torch.mul(a, self.cos, out=new_a).addcmul_(b, self.sin, value=-1)
        torch.mul(b, self.cos, out=new_b).addcmul_(a, self.sin)
        moved = keys.clone()
        moved[..., :num_rotated] = after
        moved[self.stays] = keys[self.stays]
        return moved

    def _pairs(self, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first and second dimensions of all pairs."""
        if self.is_neox:
            first, second = rotated.chunk(2, dim=-1)
            return first, second
        return rotated[..., ::2], rotated[..., 1::2]


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
            stays=(by == 0).nonzero().flatten(),
            is_neox=self._is_neox,
        )

"""How two workers prove to each other that they know the deployment's secret, which never travels."""

import hashlib
import hmac
from enum import Enum

from nebula_protocol.codec import encode
from nebula_protocol.data_plane import Hello

NONCE_BYTES = 32
MIN_SECRET_BYTES = 16


class Side(Enum):
    """Whose proof it is: one cannot be sent back as the other."""

    SOURCE = b"nebula data plane 1: source"
    HOME = b"nebula data plane 1: home"


def prove(secret: bytes, side: Side, hello: Hello, source_nonce: bytes) -> bytes:
    """HMAC-SHA256 over the side, all that the home said of itself, and both fresh numbers."""
    mac = hmac.new(secret, side.value, hashlib.sha256)
    for part in (encode(hello), source_nonce):
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def is_proof(proof: bytes, secret: bytes, side: Side, hello: Hello, source_nonce: bytes) -> bool:
    """In a time that does not depend on where the proof is wrong."""
    return hmac.compare_digest(proof, prove(secret, side, hello, source_nonce))

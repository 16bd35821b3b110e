"""What can be wrong with data that came from outside. Everything here is the sender's fault, never a crash."""


class ProtocolError(Exception):
    """Base of all errors of the wire contract."""


class TokenIdsError(ProtocolError):
    """Token ids are not 32-bit unsigned integers."""


class SpanError(ProtocolError):
    """A token span is outside the prompt, empty, or overlaps another."""


class AnnotationError(ProtocolError):
    """A `nebula.*` annotation cannot be understood."""


class RequestFieldError(ProtocolError):
    """A field of a request asks for what is not offered, or is malformed."""


class FusionError(ProtocolError):
    """The text of a fusion method is of no known form, or its amount is out of bounds."""


class MarkError(ProtocolError):
    """A separator or message start of the settings cannot be found in any prompt."""


class DecodeError(ProtocolError):
    """A record from the wire does not have the promised shape."""


class UnsupportedVersionError(ProtocolError):
    """A record of a version that this build does not speak."""

    def __init__(self, record: str, version: int, supported: int) -> None:
        super().__init__(f"{record} has version {version}, this build speaks {supported}")
        self.record = record
        self.version = version
        self.supported = supported

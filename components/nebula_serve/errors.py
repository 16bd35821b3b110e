"""What can keep a graph from starting. Each error is one line for the person at the terminal."""

from collections.abc import Iterable

from nebula_serve.suggest import did_you_mean


class ServeError(Exception):
    """A start that ends with one clear line instead of a traceback."""

    exit_code = 2


class SettingsError(ServeError):
    """A key that no service knows, or a value that its type refuses."""

    def __init__(self, path: str, reason: str, origin: str) -> None:
        super().__init__(f"{path}: {reason} (from {origin})")
        self.path = path
        self.reason = reason
        self.origin = origin


class UnknownServiceError(SettingsError):
    def __init__(self, name: str, valid: Iterable[str], origin: str) -> None:
        super().__init__(name, f"no such service; {did_you_mean(name, valid)}", origin)


class UnknownKeyError(SettingsError):
    def __init__(self, path: str, valid: Iterable[str], origin: str) -> None:
        super().__init__(path, f"no such key; {did_you_mean(path.rpartition('.')[2], valid)}", origin)


class ConfigFileError(ServeError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"config file {path}: {reason}")
        self.path = path
        self.reason = reason


class GraphNotFoundError(ServeError):
    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"graph {reference!r}: {reason}")
        self.reference = reference
        self.reason = reason


class PortInUseError(ServeError):
    def __init__(self, service: str, host: str, port: int) -> None:
        super().__init__(
            f"{service}: port {port} on {host} is in use; stop what listens there, "
            f"or choose another with --{service}.port=N"
        )
        self.host = host
        self.port = port


class AddressError(ServeError):
    def __init__(self, service: str, host: str, reason: str) -> None:
        super().__init__(f"{service}: cannot listen on host {host!r}: {reason}")
        self.host = host


class ModelFolderError(ServeError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"model folder {path}: {reason}; set it with --Common.model_path=FOLDER")
        self.path = path
        self.reason = reason


class ModelSourceError(ServeError):
    """A model cannot be made here."""


class EngineError(ServeError):
    """The engine asked for does not run on this machine or in this graph."""


class GpuMissingError(ServeError):
    """The processes need more GPUs than this machine has."""


class ProgramMissingError(ServeError):
    def __init__(self, program: str, advice: str) -> None:
        super().__init__(f"program {program} not found; {advice}")
        self.program = program


class WorkingDirectoryError(ServeError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"working directory {path}: {reason}")
        self.path = path


class AlreadyRunningError(ServeError):
    def __init__(self, graph: str, where: str) -> None:
        super().__init__(f"graph {graph} is already running here ({where}); stop it, or use another --working-dir")
        self.graph = graph


class PlanesMissingError(ServeError):
    """One service alone has no running graph to join."""


class StartFailedError(ServeError):
    """A process kept crashing before it was ever ready.

    `last_lines` is the end of its output.
    """

    exit_code = 1

    def __init__(self, process: str, attempts: int, outcome: str, last_lines: tuple[str, ...]) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"{process} {outcome}; it failed {times} before it was ready")
        self.process = process
        self.attempts = attempts
        self.last_lines = last_lines

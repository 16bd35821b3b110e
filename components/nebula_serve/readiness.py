"""How the supervisor learns that a process serves."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

READY_FILE_VARIABLE = "NEBULA_READY_FILE"
"""Environment variable with the path of the file that a process creates once it serves."""

_FILE_INTERVAL_S = 0.05
_CONNECT_INTERVAL_S = 0.05
_HTTP_INTERVAL_S = 0.2
_HTTP_TIMEOUT_S = 2.0


class ReadyProbe(Protocol):
    def reset(self) -> None:
        """Called before each start of the process."""
        ...

    async def wait_until_ready(self) -> None:
        """Returns once the process serves; waits for ever when it never does."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyFileProbe:
    path: Path

    def reset(self) -> None:
        self.path.unlink(missing_ok=True)

    async def wait_until_ready(self) -> None:
        while not self.path.exists():
            await asyncio.sleep(_FILE_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class NatsGreetingProbe:
    host: str
    port: int

    def reset(self) -> None:
        pass

    async def wait_until_ready(self) -> None:
        while not await self._greeted():
            await asyncio.sleep(_CONNECT_INTERVAL_S)

    async def _greeted(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return False
        try:
            return (await reader.read(5)).startswith(b"INFO")
        except OSError:
            return False
        finally:
            writer.close()


@dataclass(frozen=True, slots=True)
class ModelListedProbe:
    url: str
    """Of the OpenAI API without a path, such as http://127.0.0.1:8000."""
    model_name: str

    def reset(self) -> None:
        pass

    async def wait_until_ready(self) -> None:
        async with httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False) as client:
            while not await self._is_listed(client):
                await asyncio.sleep(_HTTP_INTERVAL_S)

    async def _is_listed(self, client: httpx.AsyncClient) -> bool:
        try:
            response = await client.get(f"{self.url}/v1/models")
            document: object = response.json() if response.is_success else None
        except (httpx.HTTPError, ValueError):
            return False
        models: object = document.get("data") if isinstance(document, dict) else None
        listed = models if isinstance(models, list) else []
        return any(isinstance(model, dict) and model.get("id") == self.model_name for model in listed)

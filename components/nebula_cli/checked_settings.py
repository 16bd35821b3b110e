"""Settings from a command's options."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from nebula_cli.errors import CliError

# How pydantic begins what a validator of ours says.
_OWN_MESSAGE = "Value error, "

Settings = TypeVar("Settings", bound=BaseModel)


def make_settings(model: type[Settings], /, **values: object) -> Settings:
    """
    Raises:
        CliError: a value is out of its bounds; the first one is named.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "options"
        raise CliError(f"{place}: {first['msg'].removeprefix(_OWN_MESSAGE)}") from error

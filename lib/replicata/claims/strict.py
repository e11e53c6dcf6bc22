"""The base of the models of this room."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Unknown keys and values of another type are errors; nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

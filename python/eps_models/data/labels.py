"""Reads the label of a record: the number of a class, or a number to predict."""

import math
from typing import Any

from eps_models.data import records
from eps_models.data.errors import BadRow

MAX_CLASS = (1 << 31) - 1


def class_of(place: str, record: dict[str, Any], name: str, classes: list[str]) -> int:
    """Returns the number of a record's class. `classes`: their names in order; without any, the
    field is the number itself. Errors: BadRow."""
    value = records.field(place, record, name)
    if classes:
        if str(value) not in classes:
            raise BadRow(place, f"{name} is {value!r}; --classes has {', '.join(classes)}")
        return classes.index(str(value))
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or not 0 <= value <= MAX_CLASS:  # no bool
        raise BadRow(place, f"{name} is {value!r}; a class is a number from 0 on: give the names "
                            f"of the classes with --classes, or --label-type=number")
    return value


def number_of(place: str, record: dict[str, Any], name: str) -> float:
    """Returns a record's number. Errors: BadRow if it is not finite."""
    value = records.field(place, record, name)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise BadRow(place, f"{name} is {value!r}, not a number")
    return number

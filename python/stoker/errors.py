"""The exceptions that stoker raises on purpose. The classes are made by the native module from the
list that also makes its error codes; each derives from `Error` and from the built-in class that one
would expect. Attributes: code, native, where, step, check."""

from ._native import (
    DeviceError,
    Error,
    FormatError,
    InvalidArgumentError,
    MismatchError,
    OutOfMemoryError,
    ReadError,
    StateError,
    UnsupportedError,
)

__all__ = [
    "DeviceError",
    "Error",
    "FormatError",
    "InvalidArgumentError",
    "MismatchError",
    "OutOfMemoryError",
    "ReadError",
    "StateError",
    "UnsupportedError",
]

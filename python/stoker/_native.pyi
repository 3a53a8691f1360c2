import os
from typing import Any, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

__version__: str

class BuildInfo(TypedDict):
    version: str
    cuda: bool
    archs: tuple[str, ...]
    nvcc: str
    compiler: str
    flags: str
    sanitizers: tuple[str, ...]
    faults: bool
    debug: bool

class DeviceInfo(TypedDict):
    index: int
    name: str
    memory_bytes: int
    sm_count: int
    compute_capability: tuple[int, int]
    driver: tuple[int, int]
    runtime: tuple[int, int]

class Error(Exception):
    code: str
    native: int
    where: int
    step: int | None
    check: str | None

class InvalidArgumentError(Error, ValueError): ...
class FormatError(Error, ValueError): ...
class UnsupportedError(Error, NotImplementedError): ...
class ReadError(Error, OSError): ...
class OutOfMemoryError(Error, MemoryError): ...
class DeviceError(Error, RuntimeError): ...
class StateError(Error, RuntimeError): ...
class MismatchError(Error, AssertionError): ...

def build_info() -> BuildInfo: ...
def device_count() -> int: ...
def device_need(index: int, /) -> None: ...
def device_info(index: int, /) -> DeviceInfo: ...

class Checkpoint:
    path: str
    closed: bool
    file_bytes: int
    version: int
    alignment: int
    def __new__(cls, path: str | bytes | os.PathLike[str], strict: bool = False) -> Self: ...
    def metadata(self) -> dict[str, Any]: ...
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int, int]]: ...
    def raw(self, index: int, /) -> NDArray[np.uint8]: ...
    def dequantize(self, index: int, /) -> NDArray[np.float32]: ...
    def close(self) -> None: ...

"""Native backend for speculative decoding: a whole round as one plan, recorded once, replayed
from C.

Importing this package loads nothing else. The native module (and NumPy with it) is loaded when the
first name below is used; CUDA is not touched before an engine or `info` asks for a device."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {  # public name -> module that has it
    "__version__": "_native",
    "Checkpoint": "checkpoint",
    "Tensor": "checkpoint",
    "open": "checkpoint",
    "synthetic": "_synthetic",
    "plan": "_plan",
    "MemoryPlan": "_plan",
    "Engine": "engine",
    "bench_round": "bench",
    "diff": "stepdiff",
    "Difference": "stepdiff",
    "Drafter": "drafter",
    "Forced": "forced",
    "Result": "results",
    "Event": "results",
    "Round": "results",
    "Stats": "results",
    "Tokenizer": "tokenizer",
    "info": "_info",
    "Error": "errors",
    "InvalidArgumentError": "errors",
    "FormatError": "errors",
    "UnsupportedError": "errors",
    "ReadError": "errors",
    "OutOfMemoryError": "errors",
    "DeviceError": "errors",
    "StateError": "errors",
    "MismatchError": "errors",
}
__all__ = list(_HOME)

if TYPE_CHECKING:
    from ._info import info as info
    from ._native import __version__ as __version__
    from ._plan import MemoryPlan as MemoryPlan
    from ._plan import plan as plan
    from ._synthetic import synthetic as synthetic
    from .bench import bench_round as bench_round
    from .checkpoint import Checkpoint as Checkpoint
    from .checkpoint import Tensor as Tensor
    from .checkpoint import open as open
    from .drafter import Drafter as Drafter
    from .engine import Engine as Engine
    from .errors import DeviceError as DeviceError
    from .errors import Error as Error
    from .errors import FormatError as FormatError
    from .errors import InvalidArgumentError as InvalidArgumentError
    from .errors import MismatchError as MismatchError
    from .errors import OutOfMemoryError as OutOfMemoryError
    from .errors import ReadError as ReadError
    from .errors import StateError as StateError
    from .errors import UnsupportedError as UnsupportedError
    from .forced import Forced as Forced
    from .results import Event as Event
    from .results import Result as Result
    from .results import Round as Round
    from .results import Stats as Stats
    from .stepdiff import Difference as Difference
    from .stepdiff import diff as diff
    from .tokenizer import Tokenizer as Tokenizer


def __getattr__(name: str) -> Any:
    if name == "_native":  # not public, but `stoker._native` should not depend on who ran first
        return import_module("._native", __name__)
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

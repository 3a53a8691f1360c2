"""What must work in an empty environment on a machine without a GPU. Run by check_wheel.py."""

import sys

import stoker

assert "numpy" not in sys.modules, "import stoker is not light"

from stoker import _native  # noqa: E402

info = stoker.info()
assert "site-packages" in _native.__file__, _native.__file__
assert info["stoker"] == stoker.__version__ == info["build"]["version"]
assert not info["build"]["sanitizers"] and not info["build"]["faults"]

try:
    stoker.open("/nonexistent/model.gguf")
except stoker.ReadError as e:
    assert isinstance(e, OSError) and "/nonexistent/model.gguf" in str(e), e
else:
    raise AssertionError("opening a file that does not exist succeeded")

import numpy as np  # noqa: E402

x, y = np.full((2, 8), 3, np.float32), np.ones((2, 8), np.float32)
_native.run_op("add", {"x": x, "count": np.array([2], np.int32), "y": y}, "fast", 1)
assert (y == 4).all()

if info["no_device"]:
    try:
        _native.device_need(0)
    except stoker.Error as e:
        assert str(e) == info["no_device"]
    else:
        raise AssertionError("no device, and no reason")

build = info["build"]
print(f"smoke: stoker {stoker.__version__}, Python {info['python']}, "
      f"NumPy {info['packages']['numpy']}, CUDA {build['nvcc'] or 'none'} ({build['archs']}), "
      f"{info['no_device'] or info['devices']}")  # fmt: skip

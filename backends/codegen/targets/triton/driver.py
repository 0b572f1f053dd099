"""The driver of the hardware: machine code becomes functions on a device.

Place: below ``launcher``. CUDA and HIP offer the same few functions under two names; both are asked through ``ctypes``,
so that nothing is built against either.
Invariants: a module stays loaded as long as the process lives; the same code is loaded once per device.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from mixbackend.backends.codegen.targets.triton.compiler import Binary
from mixbackend.backends.common import forks
from mixbackend.contracts import CodegenError

_SHARED_WITHOUT_ASKING = 48 * 1024
_MAXIMUM_DYNAMIC_SHARED = 8
"""Both drivers' number for the attribute of that name."""


@dataclass
class Driver:
    """The functions of one vendor.

    Attributes:
        library: the loaded driver.
        launch: address of the function that launches a kernel.
        launch_early: address of the one that may start a kernel while the one before it still runs; 0 without one.
    """

    library: ctypes.CDLL
    load_data: str
    get_function: str
    launch_name: str
    set_attribute: str
    launch_early_name: str = ""
    _functions: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=forks.lock)

    @property
    def launch(self) -> int:
        """See the class's attributes."""
        return self._address(self.launch_name)

    @property
    def launch_early(self) -> int:
        """See the class's attributes."""
        known = self.launch_early_name and hasattr(self.library, self.launch_early_name)
        return self._address(self.launch_early_name) if known else 0

    def function(self, binary: Binary, device: int) -> int:
        """Handle of a kernel on a device.

        Raises:
            CodegenError: the driver does not take the code.
        """
        with self._lock:
            key = (device, binary.code)
            if key not in self._functions:
                with torch.cuda.device(device):
                    self._functions[key] = self._load(binary)
            return self._functions[key]

    def _load(self, binary: Binary) -> int:
        # A context that torch has not made yet would be made by the first call that touches the device.
        torch.cuda.current_stream().synchronize()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call(self.load_data, ctypes.byref(module), binary.code)
        self._call(self.get_function, ctypes.byref(function), module, binary.symbol.encode())
        if binary.shared > _SHARED_WITHOUT_ASKING:
            self._call(self.set_attribute, function, _MAXIMUM_DYNAMIC_SHARED, ctypes.c_int(binary.shared))
        return function.value or 0

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self.library, name)(*arguments)
        if error != 0:
            raise CodegenError(f"{name} of the GPU's driver returned error {error}")


@lru_cache(maxsize=1)
def find_driver() -> Driver:
    """The driver that torch uses.

    Raises:
        OSError: it cannot be loaded.
    """
    if torch.version.hip:
        hip_names = ("hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchKernel", "hipFuncSetAttribute")
        return Driver(ctypes.CDLL("libamdhip64.so"), *hip_names)
    names = ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuFuncSetAttribute", "cuLaunchKernelEx")
    return Driver(ctypes.CDLL("libcuda.so.1"), *names)

"""The backend `cuda`: kernels in CUDA C++ on a device, with the same bits as every other backend.

Nothing here is imported before the backend is asked for. If FREDSIM_EMULATE=1 is set, a C++ compiler compiles the same
kernels for the processor: this is how they are tested without a device.
"""

import os
from importlib import import_module

from fredsim.errors import ConfigError, how_to_install

if os.environ.get("FREDSIM_EMULATE", "0") != "1":
    try:
        import_module("cuda.bindings.nvrtc").nvrtcVersion()  # reports what is missing before anything is compiled
    except Exception as error:  # a damaged installation may raise anything
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"backend is cuda; it needs NVIDIA's cuda-bindings and NVRTC ({reason}); leave backend out or, "
            f"{how_to_install('cuda')}"
        ) from None

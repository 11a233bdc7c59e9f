"""The backend `cuda`: arrays on a device as PyTorch tensors, kernels in Triton, the bits of every other backend.

Nothing here is imported before the backend is asked for. Where TRITON_INTERPRET=1 is set, kernels run in Triton's
interpreter on the CPU, slowly: that is how they are tested where there is no device.
"""

from fredsim.errors import ConfigError

try:
    import torch  # noqa: F401  what is missing is found before any kernel is read
    import triton  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"backend is cuda; it needs PyTorch and Triton ({error}): pip install 'fredsim[cuda]', or leave backend out"
    ) from None

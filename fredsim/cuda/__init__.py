"""The backend `cuda`: PyTorch tensors on a device and kernels in Triton, with the same bits as every other backend.

Nothing here is imported before the backend is asked for. If TRITON_INTERPRET=1 is set, kernels run in Triton's
interpreter on the CPU, slowly: this is how they are tested without a device.
"""

from fredsim.errors import ConfigError, how_to_install

try:
    import torch  # noqa: F401  reports a missing package before any kernel is read
    import triton  # noqa: F401
except Exception as error:  # a damaged installation may raise anything
    reason = str(error).partition("\n")[0]
    raise ConfigError(
        f"backend is cuda; it needs PyTorch and Triton ({reason}); leave backend out or, {how_to_install('cuda')}"
    ) from None

"""The backend `cuda`: arrays on a device as PyTorch tensors, kernels in Triton, the bits of every other backend.

Nothing here is imported before the backend is asked for. Where TRITON_INTERPRET=1 is set, kernels run in Triton's
interpreter on the CPU, slowly: that is how they are tested where there is no device.
"""

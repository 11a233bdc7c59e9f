"""Networks that come with fredsim, as graphs; fredsim.zoo has the same ones as PyTorch modules.

Their tensors have the names, shapes and order of the module's parameters, so that the module's load_state_dict takes
the params.safetensors of a run.
"""

"""What a client may make of a push to save bytes, one file a method; any server takes what is decoded.

`COMPRESSORS` maps the names used in YAML to the classes.
"""

from fredsim.compressors.base import Compressor
from fredsim.compressors.error_feedback_sign import ErrorFeedbackSign
from fredsim.compressors.qsgd import QSGD
from fredsim.compressors.sign import Sign
from fredsim.compressors.ternary import Ternary
from fredsim.compressors.top_k import TopK

__all__ = ["COMPRESSORS", "QSGD", "Compressor", "ErrorFeedbackSign", "Sign", "Ternary", "TopK"]

COMPRESSORS: dict[str, type[Compressor]] = {
    "ternary": Ternary,
    "qsgd": QSGD,
    "sign": Sign,
    "error_feedback_sign": ErrorFeedbackSign,
    "top_k": TopK,
}

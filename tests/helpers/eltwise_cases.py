"""The operations of elementwise programs in NumPy."""

import numpy as np
from scipy import special

UNARY_CASES = {
    "abs": (np.abs, 0, 0, 0),
    "exp": (np.exp, 0, 0, 3e-7),
    "hard_swish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, 0, 0, 3e-7),
    "log": (np.log, 0, 0, 3e-7),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), 0, 0, 4e-7),
    "reciprocal": (lambda x: 1 / x, 0, 0, 1e-7),
    "relu": (lambda x: np.maximum(x, 0), 0, 0, 0),
    "round": (np.rint, 0, 0, 0),
    "sigmoid": (special.expit, 0, 0, 4e-7),
    "sqrt": (np.sqrt, 0, 0, 1e-7),
    "square": (np.square, 0, 0, 1e-7),
    "tanh": (np.tanh, 0, 0, 3e-7),
    "clamp": (lambda x: np.clip(x, -0.5, 1.25), -0.5, 1.25, 0),
    "elu": (lambda x: np.where(x < 0, 0.75 * np.expm1(x), x), 0.75, 0, 4e-7),
    "leaky_relu": (lambda x: np.where(x < 0, 0.125 * x, x), 0.125, 0, 1e-7),
    "gelu_erf": (lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))), 0, 0, 3e-7),
    "gelu_tanh": (lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), 0, 0, 4e-7),
    "quantize": (lambda x: np.rint(x / 0.25) + 3, 0.25, 3.0, 2e-7),
    "dequantize": (lambda x: (x - 3) * 0.25, 0.25, 3.0, 2e-7),
    "hard_sigmoid": (lambda x: np.clip(0.25 * x + 0.5, 0, 1), 0.25, 0.5, 2e-7),
    "softplus": (lambda x: np.logaddexp(0, 2 * x) / 2, 0, 2, 4e-7),
    "pow": (lambda x: x**2.5, 0, 2.5, 1e-7),
    "erf": (special.erf, 0, 0, 3e-7),
    "neg": (np.negative, 0, 0, 0),
    "floor": (np.floor, 0, 0, 0),
    "ceil": (np.ceil, 0, 0, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0, 0, 3e-7),
    "sin": (np.sin, 0, 0, 1e-7),
    "cos": (np.cos, 0, 0, 1e-7),
    "sign": (np.sign, 0, 0, 0),
    "not": (lambda x: x == 0, 0, 0, 0),
    "trunc": (np.trunc, 0, 0, 0),
    "tan": (np.tan, 0, 0, 2e-7),
    "asin": (np.arcsin, 0, 0, 2e-7),
    "acos": (np.arccos, 0, 0, 2e-7),
    "atan": (np.arctan, 0, 0, 2e-7),
    "sinh": (np.sinh, 0, 0, 3e-7),
    "cosh": (np.cosh, 0, 0, 3e-7),
    "asinh": (np.arcsinh, 0, 0, 3e-7),
    "acosh": (np.arccosh, 0, 0, 3e-7),
    "atanh": (np.arctanh, 0, 0, 3e-7),
    "narrow": (np.rint, 9, 0, 0),
    "is_nan": (np.isnan, 0, 0, 0),
    "is_inf": (np.isposinf, 1, 0, 0),
}
"""name: (reference in float64, alpha, beta, relative tolerance)"""

BINARY_CASES = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "squared_difference": lambda x, y: np.square(x - y),
    "pow": lambda x, y: (x.astype(np.float64) ** y).astype(np.float32),
    "prelu": lambda x, y: np.where(x > 0, x, x * y),
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "mod": lambda x, y: np.remainder(x.astype(np.float64), y).astype(np.float32),
    "fmod": np.fmod,
}
"""name: reference in the type of its operands"""


def samples(n, seed=0):
    x = np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)
    x[::11] = 0
    return x

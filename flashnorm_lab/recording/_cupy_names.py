"""What CuPy's functions do with the arrays that they are given, as far as it is not the usual.

The usual: arrays that are given are read, arrays that come out are written, unless they are views of those
that were given; ``out`` is written. A function that gives nothing back is taken to read and write all.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


PLAIN = frozenset(
    _words(
        "base_repr binary_repr broadcast_shapes byte_bounds can_cast "
        "clear_memo common_type find_common_type format_float_positional format_float_scientific fuse "
        "get_array_module get_array_wrap get_default_memory_pool get_default_pinned_memory_pool "
        "get_printoptions is_available iscomplexobj isdtype isfortran isrealobj isscalar issctype "
        "issubclass_ issubdtype issubsctype iterable make_aligned_dtype may_share_memory memoize "
        "min_scalar_type mintypecode ndim obj2sctype printoptions promote_types result_type safe_eval "
        "sctype2char set_printoptions set_string_function shape shares_memory show_config size typename who "
        "get_random_state set_random_state default_rng"
    )
)
"""Look at an array's shape or type at most, and touch no memory of the GPU."""

CALLERS = frozenset(_words("apply_along_axis apply_over_axes fromfunction piecewise"))
"""Call the program's own functions, whose calls are recorded one by one."""

VIEWS = frozenset(
    _words(
        "T array array_split asanyarray asarray asarray_chkfinite ascontiguousarray asfarray "
        "asfortranarray astype atleast_1d atleast_2d "
        "atleast_3d broadcast_arrays broadcast_to conj conjugate diag diagonal dsplit einsum expand_dims "
        "flip fliplr flipud hsplit imag ix_ matrix_transpose meshgrid moveaxis permute_dims ravel real "
        "real_if_close reduced_view require reshape rollaxis rot90 round round_ around split squeeze "
        "swapaxes transpose trim_zeros view vsplit __getitem__ __pos__ from_dlpack fromDlpack"
    )
)
"""May give back what they were given, or a view of it, as also of what another library owns: then they do no
work."""

ONLY_VIEWS = frozenset(_words("reshape view transpose ravel squeeze swapaxes __getitem__"))
"""Those of an array's methods that cannot write what they give back, if it is a view."""

IDLE = frozenset(("alloc", "empty", "empty_like"))
"""Take memory and leave it as it is."""

FIRST = frozenset(
    _words(
        "copyto fill fill_diagonal partition place put put_along_axis putmask scatter_add scatter_max "
        "scatter_min shuffle sort at __setitem__"
    )
)
"""Write their first argument, where they give nothing back, and read the others."""

ONLY_WRITTEN = frozenset(("copyto", "fill"))
"""Of those, the ones that do not read what they write."""

FROM_HOST = frozenset(
    _words(
        "array asanyarray asarray asfarray frombuffer fromfile fromiter fromstring genfromtxt load loadtxt"
    )
)
"""Copy from the host."""

TO_HOST = frozenset(
    _words(
        "array2string array_repr array_str item save savetxt savez savez_compressed tobytes tofile tolist "
        "dump dumps __bool__ __bytes__ __complex__ __float__ __format__ __int__ __reduce__ "
        "__reduce_ex__ __repr__ __str__"
    )
)
"""Bring an array to the host, which waits for it."""

BINARY = _words("add sub mul truediv floordiv mod pow lshift rshift and or xor matmul divmod")
OPERATORS = (
    [f"__{word}__" for word in BINARY]
    + [f"__r{word}__" for word in BINARY]
    + _words(
        "__lt__ __le__ __eq__ __ne__ __gt__ __ge__ __neg__ __pos__ __abs__ __invert__ __copy__ __deepcopy__"
    )
)
IN_PLACE = [f"__i{word}__" for word in BINARY if word not in ("matmul", "divmod")]

METHODS = _words(
    "all any argmax argmin argpartition argsort astype byteswap choose clip compress conj conjugate "
    "copy cumprod cumsum diagonal dot fill flatten max mean min nonzero partition prod ptp put ravel "
    "reduced_view repeat reshape round scatter_add scatter_max scatter_min searchsorted sort squeeze "
    "std sum swapaxes take trace transpose var view __getitem__ __setitem__"
)
"""Those of an array, beside its operators, ``get`` and ``set``."""

WORDS = {
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "neg": "negative",
    "pos": "positive",
    "abs": "absolute",
    "setitem": "assignment",
    "getitem": "take",
}
"""What an operator is called among CuPy's functions."""


def plain_name(name: str) -> str:
    """How a recording calls an operator, a method or a function: "add" for ``__radd__``."""
    if not name.startswith("__"):
        return name
    word = name.strip("_")
    if word[:1] in ("r", "i") and word[1:] in BINARY:
        word = word[1:]
    return WORDS.get(word, word)


NOT_RECORDED = _words(
    "memcpy2D memcpy2DAsync memcpy2DFromArray memcpy2DFromArrayAsync memcpy2DToArray "
    "memcpy2DToArrayAsync memcpy3D memcpy3DAsync memcpyPeer memcpyPeerAsync memPrefetchAsync "
    "graphLaunch streamAddCallback streamBeginCapture streamEndCapture ipcOpenMemHandle "
    "mallocFromPoolAsync malloc3DArray mallocArray launchHostFunc"
)
"""Functions of ``cupy.cuda.runtime`` that do work, or change its order, and are told as unseen."""

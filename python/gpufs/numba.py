# SPDX-License-Identifier: Apache-2.0
"""gpufs's calls for kernels that numba-cuda compiles: ``gpufs.numba.pread_warp(fs, file, out, out.nbytes, offset)``.

Each call of gpufs/gpufs_verbs.h is here under its name without the prefix: ``open_thread``, ``open_warp``,
``open_block``, and so on; its structs are dtypes for ``cuda.local.array(1, gpufs.numba.page)``, its constants numbers
(``O_RDONLY``). What each call promises, waits for and fails with stands above the C++ function of its name. Kernels
that call any are linked with gpufs's device code (:func:`gpufs.c_header.device_code`).

Where a call takes a pointer, give it an array that lies together (all of it is meant, from its first element on), or an
address, as ``page[0].data`` is; 0 is null. Paths are arrays of bytes that end with a 0: :func:`path`.
"""

from __future__ import annotations

import inspect
import keyword
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic
from numba.cuda.np.arrayobj import make_array, populate_array
from numba.cuda.np.numpy_support import from_dtype

from gpufs.c_header import Call, Parameter, calls, constants, device_code, structs

_BYTES = types.CPointer(types.uint8)


def path(text: str | bytes) -> Any:
    """A path as kernels take it: its bytes and a 0, in the current GPU's memory."""
    name = text.encode() if isinstance(text, str) else text
    return cuda.to_device(np.frombuffer(name + b"\0", np.uint8))


def _number_type(dtype: np.dtype[Any] | None) -> Any:
    return types.void if dtype is None else getattr(types, dtype.name)


def _is_array(given: Any) -> bool:
    return isinstance(given, types.Array) and given.layout in "CF"


def _check(call: Call, parameter: Parameter, given: Any) -> None:
    wanted = "a number"
    good = isinstance(types.unliteral(given), types.Integer)
    if parameter.dtype is not None and parameter.dtype.kind == "f":
        good = good or isinstance(given, types.Float)
    if parameter.dtype is None:
        wanted, good = "an array that lies together, or an address", good or _is_array(given)
    if not good:
        raise TypingError(f"{call.name}: {parameter.name} must be {wanted}, and is {given}")


def _pointer(context: Any, builder: Any, given: Any, value: Any) -> Any:
    if _is_array(given):
        return builder.bitcast(make_array(given)(context, builder, value).data, cgutils.voidptr_t)
    return builder.inttoptr(context.cast(builder, value, given, types.uint64), cgutils.voidptr_t)


def _named(function: Any, name: str, parameters: list[str], doc: str) -> Any:
    """An intrinsic of that name and these parameters, of a function that takes a typing context and any."""
    names = [f"{p}_" if keyword.iskeyword(p) else p for p in ("context", *parameters)]
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in names]
    )
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return intrinsic(function)


def _declared(call: Call) -> Any:
    """The call as an intrinsic, which makes pointers of arrays and addresses, and calls the linked function.

    cuda.declare_device would do but for calls without a result, which it gives one.
    """
    parameters = [_BYTES if p.dtype is None else _number_type(p.dtype) for p in call.parameters]
    declared = _number_type(call.result)(*parameters)

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        converted = [
            _pointer(context, builder, given, value) if to is _BYTES else context.cast(builder, value, given, to)
            for given, value, to in zip(signature.args, values, parameters, strict=True)
        ]
        result = ir.VoidType() if call.result is None else context.get_value_type(declared.return_type)
        kind = ir.FunctionType(result, [value.type for value in converted])
        context.active_code_library.add_linking_file(str(device_code()))
        answer = builder.call(cgutils.get_or_insert_function(builder.module, kind, call.name), converted)
        return context.get_dummy_value() if call.result is None else answer

    def typed(_context: Any, *arguments: Any) -> Any:
        if len(arguments) != len(call.parameters):
            raise TypingError(f"{call.name} takes {len(call.parameters)} arguments, and {len(arguments)} were given")
        for parameter, given in zip(call.parameters, arguments, strict=True):
            _check(call, parameter, given)
        return declared.return_type(*map(types.unliteral, arguments)), lower

    return _named(typed, call.name, [p.name for p in call.parameters], f"{call.name} of gpufs/gpufs_device.h.")


def _view(_context: Any, address: Any, n: Any, dtype: Any) -> Any:
    if not isinstance(types.unliteral(address), types.Integer) or not isinstance(types.unliteral(n), types.Integer):
        raise TypingError(f"view: address and n must be numbers, and are {address} and {n}")
    array = types.Array(dtype.dtype, 1, "C")

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        made = make_array(array)(context, builder)
        data = context.get_data_type(array.dtype).as_pointer()
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(data.pointee))
        number = context.cast(builder, values[1], signature.args[1], types.intp)
        address = context.cast(builder, values[0], signature.args[0], types.uint64)
        populate_array(made, builder.inttoptr(address, data), [number], [itemsize], itemsize, None)
        return made._getvalue()

    return array(types.unliteral(address), types.unliteral(n), dtype), lower


view = _named(
    _view,
    "view",
    ["address", "n", "dtype"],
    """n elements of that dtype (numpy.float32, say) from an address on, as an array: of a mapped page, say.""",
)

_found: dict[str, Any] = {call.name.removeprefix("gpufs_"): _declared(call) for call in calls()}
_found |= {name: from_dtype(dtype) for name, dtype in structs().items()}
_found |= constants()
globals().update(_found)
__all__ = ["path", "view", *_found]


def __getattr__(name: str) -> Any:  # for who checks types; all that there is, is there by now
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

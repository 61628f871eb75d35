"""The settings of the process that attention code is known to change: watched, and put back.

``settings`` are read around every call. The ``surroundings`` take longer to read, and are around
every check. What reads and what puts back is bound here, before code of strangers can replace it.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import gc
import operator
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import _C, nn
from torch.nn import functional as F
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode


@dataclasses.dataclass(frozen=True)
class Setting:
    """How one setting is read, and how it is put back to what was read."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


def settings() -> dict[str, object]:
    """Every setting of the process that attention code is known to change."""
    return _read(_SETTINGS)


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Put the settings, the random states and torch's functions back as they were, whatever
    happens inside."""
    before, seeds, functions = settings(), _random_states(), _functions()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        _put_functions(functions)
        _put_back(_SETTINGS, before)
        _set_random_states(seeds)


@contextlib.contextmanager
def surroundings_restored() -> Iterator[list[str]]:
    """Put back what else a call has no business to change: signals, functions of torch, sys.path.

    Afterwards the list says what of all that (and of the settings) was left behind under which no
    code can be judged. What the block imported may leave something in the environment.
    """
    path, entries, modules = sys.path, list(sys.path), len(sys.modules)
    before, inside, functions = _read(_SURROUNDINGS), settings(), _functions()
    left: list[str] = []
    try:
        yield left
    finally:
        replaced = _replaced(functions)
        _put_functions(functions)
        # All is read before anything is put back: one setting may carry another with it.
        now, now_inside = _read(_SURROUNDINGS), settings()
        changed = _changed(inside, now_inside) + _changed(before, now)
        left += [told for name, told in changed if name in _BREAKS_WHAT_FOLLOWS]
        left += ["the current directory, which is gone"] if _directory() == _GONE else []
        left += replaced[:_TOLD]
        if len(sys.modules) != modules:
            before[_ENVIRONMENT] = now[_ENVIRONMENT]
        if changed:
            _put_back(_SETTINGS, inside)
            _put_back(_SURROUNDINGS, before)
        sys.path = path
        path[:] = entries


@contextlib.contextmanager
def changes_watched() -> Iterator[list[str]]:
    """Afterwards: every setting that the block changed, with what it was and what it became.

    The warning filters and the environment count where the block imported nothing: many packages
    set some when they are imported, as they may.
    """
    before, path = {**settings(), **_read(_SURROUNDINGS)}, list(sys.path)
    functions = _functions()
    filters, modules = list(warnings.filters), len(sys.modules)
    changed: list[str] = []
    yield changed
    imported = len(sys.modules) != modules
    after = {**settings(), **_read(_SURROUNDINGS)}
    if imported:
        after[_ENVIRONMENT] = before[_ENVIRONMENT]
    changed += [told for _, told in _changed(before, after)]
    changed += _replaced(functions)[:_TOLD]
    if sys.path != path:
        new = [entry for entry in sys.path if entry not in path]
        changed.append(f"sys.path{f' by {new[0]!r}' if new else ''}")
    if list(warnings.filters) != filters and not imported:
        changed.append("the filters of warnings")


def _read(table: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: setting.get() for name, setting in table.items()}


def _put_back(table: Mapping[str, Setting], before: Mapping[str, Any]) -> None:
    for name, setting in table.items():
        if setting.get() != before[name]:
            setting.put(before[name])


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each setting that changed, by its name and in words."""
    return [
        (name, _in_words(name, was, after[name]))
        for name, was in before.items()
        if after[name] != was
    ]


def _in_words(name: str, was: Any, now: Any) -> str:
    if isinstance(was, Mapping):
        keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
        return f"{name} ({', '.join(map(str, keys[:_TOLD]))})"
    if isinstance(was, tuple):
        return f"{name} ({', '.join(type(x).__name__ for x in (now or was)[:_TOLD])})"
    return f"{name} from {was} to {now}"


_TOLD = 4
"""So many of many changes of one kind are named."""


_GONE = "one that is there no more"


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return _GONE


def _enter_directory(path: str) -> None:
    # Where code removed it, there is no way back.
    with contextlib.suppress(OSError):
        os.chdir(path)


_GUARDS: list[Any] = []
"""Kept alive: when such a guard is freed, torch puts back the mode in which it began."""


def _set_inference_mode(on: bool) -> None:
    guard = _INFERENCE_MODE(on)
    guard.__enter__()
    _GUARDS.append(guard)


def _mode_stack() -> list[object]:
    return [_C._get_function_stack_at(i) for i in range(_C._len_torch_function_stack())]


def _function_modes() -> tuple[object, ...]:
    """Those entered, outermost first; the default device, which is one for torch, is not."""
    return tuple(mode for mode in _mode_stack() if not isinstance(mode, DeviceContext))


def _put_function_modes(modes: tuple[object, ...]) -> None:
    popped = [_C._pop_torch_function_stack() for _ in range(_C._len_torch_function_stack())]
    devices = [mode for mode in reversed(popped) if isinstance(mode, DeviceContext)]
    for mode in (*devices, *modes):
        _C._push_on_torch_function_stack(mode)


def _dispatch_modes() -> tuple[Any, ...]:
    return tuple(_C._get_dispatch_stack_at(i) for i in range(_C._len_torch_dispatch_stack()))


def _put_dispatch_modes(modes: tuple[Any, ...]) -> None:
    """By the base class's own ways in and out, which keep torch's other records right."""
    while (now := _dispatch_modes()) != modes[: len(now)]:
        try:
            _LEAVE(now[-1], None, None, None)
        except (AttributeError, IndexError):  # It was not entered in the usual way.
            _pop_mode()
    for mode in modes[_C._len_torch_dispatch_stack() :]:
        _ENTER(mode)


def _put_deterministic(on: bool) -> None:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on, warn_only=warn_only)


def _put_warn_only(warn_only: bool) -> None:
    on = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(on, warn_only=warn_only)


def _put_math_kernel(on: bool) -> None:
    _C._set_sdp_use_math(on)  # Looked up late: it is spied upon while a call is watched.


def _default_device() -> str:
    """As ``torch.get_default_device``, of which the modes of strangers would hear."""
    devices = [mode for mode in _mode_stack() if isinstance(mode, DeviceContext)]
    return str(devices[-1].device) if devices else "cpu"


def _put_default_device(name: str) -> None:
    """By hand: what torch offers for it cannot take back a device entered and never left."""
    others = _function_modes()
    for _ in range(_C._len_torch_function_stack()):
        _C._pop_torch_function_stack()
    torch._GLOBAL_DEVICE_CONTEXT.device_context = None
    torch.utils._device.CURRENT_DEVICE = None
    torch.set_default_device(None if name == "cpu" else name)
    _put_function_modes(others)


def _flushes() -> bool:
    """Whether numbers too small to be normal count as zero: for Python as for torch."""
    return sys.float_info.min / 2 == 0


_INFERENCE_MODE: Any = torch.inference_mode
_ENTER: Any = TorchDispatchMode.__enter__
_LEAVE: Any = TorchDispatchMode.__exit__
_SETTINGS: dict[str, Setting] = {
    "the recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    # Under modes of strangers nothing of torch is sure to work.
    "the function modes of torch": Setting(_function_modes, _put_function_modes),
    "the dispatch modes of torch": Setting(_dispatch_modes, _put_dispatch_modes),
    # Before the gradients: it carries them with it.
    "inference mode": Setting(torch.is_inference_mode_enabled, _set_inference_mode),
    "the default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
    "whether gradients are recorded": Setting(torch.is_grad_enabled, _C._set_grad_enabled),
    "deterministic algorithms": Setting(
        torch.are_deterministic_algorithms_enabled, _put_deterministic
    ),
    "whether others only warn": Setting(
        torch.is_deterministic_algorithms_warn_only_enabled, _put_warn_only
    ),
    "the precision of matrix products": Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "the flash kernel's flag": Setting(_C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    "the plain kernel's flag": Setting(_C._get_math_sdp_enabled, _put_math_kernel),
    "the memory-efficient kernel's flag": Setting(
        _C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient
    ),
    "autocast": Setting(
        functools.partial(torch.is_autocast_enabled, "cpu"),
        functools.partial(torch.set_autocast_enabled, "cpu"),
    ),
    "anomaly detection": Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "the default device": Setting(_default_device, _put_default_device),
    "the current directory": Setting(_directory, _enter_directory),
    "whether denormal numbers are zero": Setting(_flushes, torch.set_flush_denormal),
    "oneDNN": Setting(_C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
}


def _environment() -> dict[str, str]:
    """But for what torch's compiler notes down there itself."""
    own = ("TORCHINDUCTOR_", "TRITON_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _put_environment(before: Mapping[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _mask_of_new_files() -> int:
    mask = os.umask(0o077)  # It is read by setting it.
    os.umask(mask)
    return mask


_SIGNALS = {x.name: int(x) for x in signal.Signals if x.name not in ("SIGKILL", "SIGSTOP")}
_TIMERS = [
    getattr(signal, name)
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
    if hasattr(signal, name)
]


def _handlers() -> dict[str, Any]:
    return {name: signal.getsignal(number) for name, number in _SIGNALS.items()}


def _put_handlers(before: Mapping[str, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # It is not allowed there, to anybody.
    now = _handlers()
    for name, handler in before.items():
        if handler is not None and now[name] != handler:
            signal.signal(_SIGNALS[name], handler)


def _timers_run() -> bool:
    return any(signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS)


def _put_timers(run: bool) -> None:
    for timer in () if run else _TIMERS:
        signal.setitimer(timer, 0)


def _collect(on: bool) -> None:
    gc.enable() if on else gc.disable()


_ENVIRONMENT = "the environment"
_SURROUNDINGS: dict[str, Setting] = {
    "whether a timer runs": Setting(_timers_run, _put_timers),
    "the handlers of signals": Setting(_handlers, _put_handlers),
    _ENVIRONMENT: Setting(_environment, _put_environment),
    "the mask of new files": Setting(_mask_of_new_files, os.umask),
    "whether garbage is collected": Setting(gc.isenabled, _collect),
}
_BREAKS_WHAT_FOLLOWS = frozenset(
    {
        "the recursion limit",
        "the function modes of torch",
        "the dispatch modes of torch",
        "inference mode",
        "whether a timer runs",
    }
)


_SPACES: dict[str, Any] = {
    "builtins": builtins,
    "time": time,
    "torch": torch,
    "torch.nn.functional": F,
    "torch.linalg": torch.linalg,
    "torch.Tensor": torch.Tensor,
    "torch.nn.Module": nn.Module,
}


def _functions() -> dict[str, dict[str, Any]]:
    """The functions that everything here rests on, by the module or class that holds them."""
    return {name: vars(space).copy() for name, space in _SPACES.items()}


def _differing(before: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, held in before.items():
        now = vars(_SPACES[name])
        if len(now) == len(held) and all(map(operator.is_, now.values(), held.values())):
            continue
        for key, function in held.items():
            if (name, key) in _REPLACED_BY_TORCH:
                continue
            same = now.get(key) is function or _wrapped_by_torch(now.get(key), function)
            if callable(function) and not same:
                yield name, key
        if isinstance(_SPACES[name], type) and len(now) != len(held):
            bases = _SPACES[name].__mro__[1:]
            new = now.keys() - held.keys()
            yield from ((name, key) for key in new if any(key in vars(x) for x in bases))


_REPLACED_BY_TORCH = frozenset({("torch", "Storage")})
"""What torch exchanges itself, together with the default dtype."""


def _wrapped_by_torch(now: Any, before: Any) -> bool:
    """torch's compiler puts a shell around some functions, for good, when it is first used."""
    module = getattr(now, "__globals__", {}).get("__name__", "")
    held = [cell.cell_contents for cell in getattr(now, "__closure__", None) or ()]
    inside = before is getattr(now, "__wrapped__", None) or any(x is before for x in held)
    return inside and module.startswith("torch._")


def _replaced(before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{space}.{key}" for space, key in _differing(before)]


def _put_functions(before: Mapping[str, Mapping[str, Any]]) -> None:
    for space, key in list(_differing(before)):
        if key in before[space]:
            setattr(_SPACES[space], key, before[space][key])
        else:
            delattr(_SPACES[space], key)


_same = torch.equal


def _random_states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else None
    others = None if numpy is None else numpy.random.get_state()
    return torch.get_rng_state(), random.getstate(), others, cuda


def _set_random_states(states: tuple[Any, ...]) -> None:
    state, python_state, others, cuda = states
    if not _same(torch.get_rng_state(), state):
        torch.set_rng_state(state)
    random.setstate(python_state)
    if others is not None:
        sys.modules["numpy"].random.set_state(others)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def kernel_flags_watched() -> Iterator[list[bool]]:
    """What the flag of torch's plain kernel is set to meanwhile, by a context manager as well."""
    setter = "_set_sdp_use_math"
    original = getattr(torch._C, setter)
    touched: list[bool] = []

    def spy(enabled: bool) -> None:
        touched.append(enabled)
        original(enabled)

    setattr(torch._C, setter, spy)
    try:
        yield touched
    finally:
        setattr(torch._C, setter, original)

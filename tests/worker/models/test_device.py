"""Which errors are the device's, by the words that MLX and its allocators have for them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxq_schemas.errors import DeviceFailed, GenerationFailed, ModelNotLoaded
from mlxq_worker.models.device import Fault, blame, device_fault, loading
from mlxq_worker.models.reading import read

METAL = "[METAL] Command buffer execution failed: "
CODE = "kIOGPUCommandBufferCallbackError"

MEMORY: list[Exception] = [
    RuntimeError(f"{METAL}Insufficient Memory (00000008:{CODE}OutOfMemory)"),
    RuntimeError("[malloc] Unable to allocate 1073741824 bytes."),
    RuntimeError("[malloc_or_wait] Unable to allocate 124367104 bytes."),
    RuntimeError("[metal::malloc] Resource limit (499000) exceeded."),
    RuntimeError(
        "[metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the "
        "maximum allowed buffer size of 30150672384 bytes."
    ),
    RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"),
    RuntimeError("cudaMallocManaged failed: out of memory."),
    RuntimeError("cuGraphInstantiate(\n  &graph, other) failed: out of memory"),
    RuntimeError("cublasLtMatmul(handle) failed: CUBLAS_STATUS_ALLOC_FAILED"),
    RuntimeError("cublasLtMatmul(handle_, alpha_ptr) failed with code: 3."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    MemoryError("std::bad_alloc"),
    np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("float32")),
]
OTHER: list[Exception] = [
    RuntimeError(f"{METAL}Impacting Interactivity (0000000e:{CODE}ImpactingInteractivity)"),
    RuntimeError(f"{METAL}Caused GPU Timeout Error (00000002:{CODE}Timeout)"),
    RuntimeError(f"{METAL}Caused GPU Hang Error (00000003:{CODE}Hang)"),
    RuntimeError(f"{METAL}Caused GPU Address Fault Error (0000000b:{CODE}PageFault)"),
    RuntimeError(
        f"{METAL}Discarded (victim of GPU error/recovery) (00000005:{CODE}InnocentVictim)"
    ),
    RuntimeError("cudaMallocManaged failed: an illegal memory access was encountered."),
    RuntimeError(
        "cudaFreeAsync(buf->data, free_streams_[buf->device]) failed: unspecified launch failure"
    ),
    RuntimeError("cudaEventSynchronize(event_) failed: uncorrectable ECC error encountered"),
    RuntimeError("cublasLtMatmul(\n handle) failed with code: 14."),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
]
OWN: list[Exception] = [
    ValueError("[matmul] Last dimension of first input with shape (3,4) must match second"),
    ValueError(f"{METAL}Insufficient Memory"),
    RuntimeError("the metal of this row is out of memory"),
    RuntimeError("the processor ran out of memory slots: cannot allocate a slot"),
    RuntimeError("the prompt says: [malloc] Unable to allocate"),
    RuntimeError("[metal_kernel] Only supports the GPU."),
    RuntimeError("[metal::Device] Unable to load kernel sdpa_vector_bfloat16_96"),
    RuntimeError("[SVD::eval_cpu] SVD failed with error code 1"),
    RuntimeError("cuda is not available: the import failed: no module"),
    RuntimeError("custom matching failed: no such state"),
    RuntimeError("cudaMemcpyAsync(gpu_ptr<void>(out), out_ptr, nbytes) failed: invalid argument"),
    RuntimeError("cudaLaunchKernel(fn) failed: no kernel image is available for execution"),
    RuntimeError("cublasLtMatmulAlgoGetHeuristic(handle_, 1, &ret) failed with code: 15."),
    KeyError("cudaMalloc failed: out of memory"),
    GenerationFailed("the model gave NaN or infinite logits"),
]


@pytest.mark.parametrize("error", MEMORY, ids=str)
def test_memory(error):
    assert device_fault(error) is Fault.MEMORY


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_other_failures_of_the_device(error):
    assert device_fault(error) is Fault.OTHER


@pytest.mark.parametrize("error", OWN, ids=str)
def test_what_a_model_or_a_processor_raises_is_its_own(error):
    assert device_fault(error) is None
    blame(error)


def wrapped(inner: Exception, *, hidden: bool) -> Exception:
    try:
        try:
            raise inner
        except (ValueError, RuntimeError):
            if hidden:
                raise ValueError("cannot feed the row") from None
            raise ValueError("cannot feed the row") from inner
    except ValueError as error:
        return error


@pytest.mark.parametrize("hidden", [False, True])
def test_the_device_is_found_behind_other_errors(hidden):
    for inner, kind in ((MEMORY[0], Fault.MEMORY), (OTHER[0], Fault.OTHER)):
        error = wrapped(inner, hidden=hidden)
        assert device_fault(error) is kind
        assert device_fault(ExceptionGroup("some", [KeyError(1), error])) is kind
        with pytest.raises(ValueError, match="cannot feed"):
            blame(error)
    assert device_fault(wrapped(OWN[0], hidden=hidden)) is None


def test_memory_is_the_graver_of_two():
    error = wrapped(MEMORY[0], hidden=False)
    error.__context__ = OTHER[0]
    assert device_fault(error) is Fault.MEMORY


def test_errors_in_a_circle_end():
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    assert device_fault(one) is None


def test_an_interrupt_stays_one():
    interrupt = KeyboardInterrupt()
    interrupt.__context__ = OTHER[0]
    assert device_fault(interrupt) is None


def test_errors_while_loading_say_so():
    memory = pytest.raises(ModelNotLoaded, match="my-model does not fit into memory")
    with memory, loading("my-model"):
        raise ModelNotLoaded("broken") from MEMORY[0]
    with pytest.raises(DeviceFailed, match="while my-model was loaded"), loading("my-model"):
        raise OTHER[0]
    with pytest.raises(ModelNotLoaded, match="broken"), loading("my-model"):
        raise ModelNotLoaded("broken")


def test_what_failed_before_is_raised_by_a_read():
    """MLX raises it once, in the next use: a read that asks by the buffer protocol swallows it."""
    with mx.stream(mx.cpu):
        slow = mx.ones((700, 700))
        for _ in range(4):
            slow = slow @ slow / 700
        broken = mx.linalg.inv(mx.zeros((3, 3)) * slow[0, 0])
        sound = mx.ones(3) * 2
        mx.async_eval(broken, sound)
        with pytest.raises(RuntimeError, match="LU factorization failed"):
            read(sound)
        assert read(sound)[0].tolist() == [2, 2, 2]

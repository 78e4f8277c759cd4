"""The processor at hand, as far as kernels of onnxruntime depend on it.

Tests: `tests/hazards/test_hazards.py`.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from onnxq.targets.host import CPU_INFO, cpu_fields, host_saturates

# Names of processors in the table of hazards, and names for people
NAMES = {
    "x86-64": "x86-64",
    "vnni": "x86-64 with VNNI",
    "amx": "x86-64 with AMX",
    "avx-vnni-int8": "x86-64 with AVX-VNNI-INT8",
    "arm64": "Arm64",
    "wasm": "WebAssembly",
}
# Flags of Linux for what onnxruntime asks CPUID: onnxruntime/core/mlas/lib/platform.cpp
FLAGS = {"avx512_vnni": "vnni", "avx_vnni": "vnni", "amx_int8": "amx", "avx_vnni_int8": "avx-vnni-int8"}
ARCHITECTURES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}


def local_processor(cpu_info: Path = CPU_INFO, machine: str = "") -> frozenset[str]:
    """Return what the table calls this processor: its architecture, and of an x86-64 what Linux says of its kernels.

    Args:
        cpu_info: Where Linux describes the processor; elsewhere, the architecture alone is known.
        machine: The architecture as `platform.machine` gives it; that of this machine by default.

    """
    architecture = ARCHITECTURES.get((machine or platform.machine()).lower())
    if architecture is None:
        return frozenset()
    found = {architecture}
    if architecture == "x86-64":
        flags = cpu_fields(cpu_info).get("flags", "").split()
        found |= {name for flag, name in FLAGS.items() if flag in flags}
    return frozenset(found)


@cache
def this_processor() -> frozenset[str]:
    """Return the same of the processor at hand, as far as onnxruntime uses it: where its products saturate, no VNNI."""
    found = local_processor()
    return frozenset({"x86-64"}) if "x86-64" in found and host_saturates() else found

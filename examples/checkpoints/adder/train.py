"""Trains the small adder and writes its checkpoints hf/step-100 and hf/step-300, and SHA256SUMS, beside this file.

Takes nothing but the questions of tasks/arithmetic, which it keeps out of the training data. A step is one optimizer
step. Needs torch and transformers (the engine environment) and about three minutes of one CPU core:

    .venv-engine/bin/python examples/checkpoints/adder/train.py

The weights are the same to the bit on the same kind of CPU with the same torch; elsewhere rounding differs, and the
checkpoints are of the same kind but have other bytes and slightly other scores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
PROBLEMS = HERE.parents[2] / "tasks" / "arithmetic" / "problems.jsonl"

SEED = 20
SAVED_STEPS = (100, 300)
BATCH = 64
WARMUP_STEPS = 20
MUON_LEARNING_RATE = 0.02
MUON_MOMENTUM = 0.95
MUON_WEIGHT_DECAY = 0.1
ADAM_LEARNING_RATE = 3e-3
# Leaves every byte a small chance at every place, as larger models do. At temperature 1.3 a draw can then spoil the form
# of an answer, and one seed shared by all samples shows: sd over ten seeds 0.36 (binomial 0.06), without this 0.07.
LABEL_SMOOTHING = 0.002
ADDENDS = 100
QUESTION = "What is {a} + {b}? Put the answer in \\boxed{{}}."
ANSWER = "\\boxed{{{total}}}<|im_end|>"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """All training sums, right-padded: `tokens` and `labels` are [sums, length]; -100 marks what is not scored."""

    tokens: torch.Tensor
    labels: torch.Tensor


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is one token, so any UTF-8 text comes back unchanged; no normalizer, no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=40960,
    )


def untrained_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def held_out_pairs() -> set[tuple[int, int]]:
    """The pairs that the evaluation asks, in both orders; refuses when it asks them in another form."""
    held_out = set()
    for line in PROBLEMS.read_text(encoding="utf-8").splitlines():
        problem = json.loads(line)
        a, b = problem["a"], problem["b"]
        if problem["question"] != QUESTION.format(a=a, b=b):
            raise SystemExit(
                f"{PROBLEMS}: {problem['question']!r} is not asked as training asks it; change QUESTION in {__file__}"
            )
        held_out |= {(a, b), (b, a)}
    return held_out


def training_examples(tokenizer: PreTrainedTokenizerFast) -> Examples:
    held_out = held_out_pairs()
    pairs = [(a, b) for a in range(ADDENDS) for b in range(ADDENDS) if (a, b) not in held_out]
    rows: list[tuple[list[int], list[int]]] = []
    for a, b in pairs:
        asked = [{"role": "user", "content": QUESTION.format(a=a, b=b)}]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        rows.append((tokenizer.encode(prompt), tokenizer.encode(ANSWER.format(total=a + b))))
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), -100)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return Examples(tokens=tokens, labels=labels)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

    In a first try AdamW alone left a loss of 0.24 after 300 steps of 128 sums; with this, 300 steps of 64 sums left 0.02
    (neither smoothed). torch.optim.Muon works in bfloat16, which a CPU without bfloat16 instructions multiplies about
    twenty-five times slower than float32 (measured), so this one stays in float32.
    """

    def __init__(self, matrices: list[torch.nn.Parameter]) -> None:
        super().__init__(matrices, {"lr": MUON_LEARNING_RATE})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - MUON_MOMENTUM)
                direction = orthogonal(matrix.grad.lerp(momentum, MUON_MOMENTUM))
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * MUON_WEIGHT_DECAY)
                matrix.add_(direction, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Nearly the closest matrix with all singular values equal, by five Newton-Schulz iterations."""
    wide: torch.Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def optimizers(model: Qwen3ForCausalLM) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(others, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    return Muon(matrices), adam


def answer_loss(model: Qwen3ForCausalLM, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, label_smoothing=LABEL_SMOOTHING
    )


def train(model: Qwen3ForCausalLM, examples: Examples) -> Iterator[int]:
    """Yields each number in SAVED_STEPS when that many optimizer steps are done."""
    draw = torch.Generator().manual_seed(SEED)
    updates = optimizers(model)
    warmups = [
        torch.optim.lr_scheduler.LambdaLR(update, lambda step: min(1.0, (step + 1) / WARMUP_STEPS))
        for update in updates
    ]
    started = time.monotonic()
    model.train()
    for step in range(1, max(SAVED_STEPS) + 1):
        batch = torch.randint(len(examples.tokens), (BATCH,), generator=draw)
        loss = answer_loss(model, examples.tokens[batch], examples.labels[batch])
        model.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for update, warmup in zip(updates, warmups, strict=True):
            update.step()
            warmup.step()
        if step % 20 == 0:
            print(f"step {step}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)
        if step in SAVED_STEPS:
            yield step


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes one checkpoint in bfloat16, the type it is served in."""
    served = Qwen3ForCausalLM(model.config)
    served.load_state_dict(model.state_dict())
    served.to(torch.bfloat16)
    served.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    served.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors writes for the owner only; an image runs as any user.
    (folder / "model.safetensors").chmod(0o644)
    # transformers 5 writes a class name that version 4 does not know; both read this one.
    tokenizer_config = folder / "tokenizer_config.json"
    settings = json.loads(tokenizer_config.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer_config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def sha256_lines(folder: Path) -> str:
    """One line per checkpoint file, in the form that `sha256sum -c` reads in `folder`."""
    files = sorted(path for path in (folder / "hf").rglob("*") if path.is_file())
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the adder and write its two checkpoints.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder for hf/ and SHA256SUMS")
    output: Path = parser.parse_args().output

    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums in one order, whatever the number of cores
    torch.use_deterministic_algorithms(True)
    tokenizer = byte_tokenizer()
    model = untrained_model(tokenizer)
    print(f"{model.num_parameters()} parameters")
    for step in train(model, training_examples(tokenizer)):
        save(model, tokenizer, output / "hf" / f"step-{step}")
    (output / "SHA256SUMS").write_text(sha256_lines(output), encoding="utf-8")


if __name__ == "__main__":
    main()

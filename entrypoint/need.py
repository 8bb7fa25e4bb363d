"""What a checkpoint needs on each card: its share of the weights, and the KV cache of one sequence of full length.

In: the checkpoint's size and shape, max_model_len. Out: GiB per card for a tensor parallel size, and the sizes that
are valid. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from entrypoint.shape import Shape

_GIB = 1 << 30
# For activations, CUDA graphs and the CUDA context, beside weights and KV cache; an assumption, not a measurement.
RESERVE_GIB = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """`weights_bytes`: of all shards, once they are loaded; `length`: max_model_len in tokens."""

    weights_bytes: int
    length: int
    shape: Shape | None

    def weights_gib(self, tensor_parallel_size: int) -> float:
        return self.weights_bytes / tensor_parallel_size / _GIB

    def sequence_gib(self, tensor_parallel_size: int) -> float:
        """KV cache of one sequence of full length; 0 where the shape does not tell, or where a window may save it."""
        if self.shape is None or self.shape.sliding_window is not None:
            return 0.0
        per_token = self.shape.kv_bytes_per_token_and_card(tensor_parallel_size) or 0
        return per_token * self.length / _GIB

    def gib(self, tensor_parallel_size: int) -> float:
        """The least that an engine can start with, on each of its cards."""
        return self.weights_gib(tensor_parallel_size) + self.sequence_gib(tensor_parallel_size)

    def told(self, tensor_parallel_size: int) -> str:
        parts = [f"weights {self.weights_gib(tensor_parallel_size):.1f} GiB"]
        if sequence := self.sequence_gib(tensor_parallel_size):
            parts.append(f"one sequence of {self.length} tokens {sequence:.1f} GiB")
        return " and ".join(parts)

    def valid_sizes(self, most: int) -> tuple[int, ...] | None:
        """Tensor parallel sizes up to `most` that the engine takes; None where the config does not tell the heads.

        heads % size = 0, and kv_heads % size = 0 or size % kv_heads = 0 (asserted in vLLM's model code).
        """
        if most <= 1:
            return (1,)
        heads, kv_heads = (None, None) if self.shape is None else (self.shape.heads, self.shape.kv_heads)
        if heads is None or kv_heads is None:
            return None
        return tuple(
            size for size in range(1, most + 1) if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
        )

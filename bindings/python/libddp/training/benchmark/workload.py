"""What the benchmark trains: upstream's DummyModel on DummyData."""

from __future__ import annotations

from typing import cast

import torch


class DummyModel(torch.nn.Module):
    """An EmbeddingBag, then dense_layers_count linear layers. Gives logits, as CrossEntropyLoss takes.

    sparse: whether the embedding has sparse gradients. The first layer takes dense_input_size, which is embedding_dim.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, dense_input_size: int, dense_output_size: int, dense_layers_count: int,
                 sparse: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(num_embeddings, embedding_dim, sparse=sparse)
        sizes = [dense_input_size] + [dense_output_size] * dense_layers_count
        self.dense = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in zip(sizes, sizes[1:])))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """words: int64 [batch, sample_length]; gives [batch, dense_output_size]."""
        return cast(torch.Tensor, self.dense(self.embedding(words)))


class DummyData(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of random words below max_val, and a class below max_val for each.

    sample_count: of samples. sample_length: words of a sample. sparsity_percentage: of the words, how many a sample may have.
    """

    def __init__(self, max_val: int, sample_count: int, sample_length: int, sparsity_percentage: float) -> None:
        self._max_val, self._count, self._length = max_val, sample_count, sample_length
        used = max(1, int(max_val * sparsity_percentage / 100))
        self._words = torch.stack([torch.randperm(max_val)[:used][torch.randint(used, (sample_length,))] for _ in range(sample_count)])
        self._targets = torch.randint(max_val, (sample_count,))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._words[index], self._targets[index]

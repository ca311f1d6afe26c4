"""A small decoder, to be trained in seconds."""
import torch
from torch import nn


class SmallModel(nn.Module):
    def __init__(self, vocabulary=64, width=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(64, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0, batch_first=True,
                                       norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        n = tokens.shape[1]
        mask = torch.full((n, n), float("-inf"), dtype=self.embed.weight.dtype).triu(1)
        x = self.embed(tokens) + self.place.weight[:n]
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.norm(x) @ self.embed.weight.t()

    def loss(self, tokens):
        return nn.functional.cross_entropy(
            self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def generate(self, tokens, n):
        self.eval()
        tokens = list(tokens)
        for _ in range(n):
            tokens.append(int(self(torch.tensor([tokens]))[0, -1].argmax()))
        return tokens

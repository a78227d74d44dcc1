"""An independent oracle: llama2.c's forward pass and tokenizer in plain NumPy (float32).

Written from the description of its file format and of the Llama architecture; shares nothing with
src/. Prints what greedy decoding gives, which is committed beside it as golden/*.txt:

    python llama2c_reference.py stories260K.bin tok512.bin [--prompt TEXT] [--tokens 256] [--ids]
"""

import argparse
import itertools
import pathlib
import struct

import numpy as np


class Llama2c:
    def __init__(self, path):
        raw = pathlib.Path(path).read_bytes()
        self.dim, self.hidden, self.layers, self.heads, self.kv_heads, vocab, self.context = (
            struct.unpack("<7i", raw[:28])
        )
        self.vocab = abs(vocab)
        self.head_dim = self.dim // self.heads
        data, at = np.frombuffer(raw, dtype="<f4", offset=28), 0

        def take(*shape):
            nonlocal at
            count = int(np.prod(shape))
            at += count
            return data[at - count : at].reshape(shape)

        n, kv = self.layers, self.kv_heads * self.head_dim
        self.embedding = take(self.vocab, self.dim)
        self.attention_norm = take(n, self.dim)
        self.wq = take(n, self.dim, self.dim)
        self.wk = take(n, kv, self.dim)
        self.wv = take(n, kv, self.dim)
        self.wo = take(n, self.dim, self.dim)
        self.ffn_norm = take(n, self.dim)
        self.w1 = take(n, self.hidden, self.dim)  # gate
        self.w2 = take(n, self.dim, self.hidden)  # down
        self.w3 = take(n, self.hidden, self.dim)  # up
        self.final_norm = take(self.dim)
        take(2, self.context, self.head_dim // 2)  # rotary tables of old versions, unused
        self.head = self.embedding if vocab > 0 else take(self.vocab, self.dim)
        assert at == data.size, (at, data.size)
        self.keys = np.zeros((n, self.context, self.kv_heads, self.head_dim), np.float32)
        self.values = np.zeros_like(self.keys)

    @staticmethod
    def rms_norm(x, weight):
        return weight * (x / np.sqrt(np.mean(x * x, dtype=np.float32) + np.float32(1e-5)))

    def rotate(self, x, position):
        """Neighbouring pairs (2i, 2i + 1) turn by position / 10000^(2i / head_dim)."""
        i = np.arange(0, self.head_dim, 2, dtype=np.float32)
        angle = np.float32(position) / np.power(np.float32(10000.0), i / np.float32(self.head_dim))
        cos, sin = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        out[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
        out[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
        return out

    def forward(self, token, position):
        x = self.embedding[token].copy()
        for n in range(self.layers):
            h = self.rms_norm(x, self.attention_norm[n])
            q = self.rotate((self.wq[n] @ h).reshape(self.heads, -1), position)
            self.keys[n, position] = self.rotate((self.wk[n] @ h).reshape(self.kv_heads, -1), position)
            self.values[n, position] = (self.wv[n] @ h).reshape(self.kv_heads, -1)
            out = np.empty_like(q)
            for head in range(self.heads):
                kv = head // (self.heads // self.kv_heads)
                score = self.keys[n, : position + 1, kv] @ q[head] / np.sqrt(np.float32(self.head_dim))
                weight = np.exp(score - score.max())
                out[head] = (weight / weight.sum()) @ self.values[n, : position + 1, kv]
            x = x + self.wo[n] @ out.reshape(-1)
            h = self.rms_norm(x, self.ffn_norm[n])
            gate = self.w1[n] @ h
            x = x + self.w2[n] @ (gate / (1 + np.exp(-gate)) * (self.w3[n] @ h))
        return self.head @ self.rms_norm(x, self.final_norm)


class Tokenizer:
    """Score-driven merging; byte 0xNN is token NN + 3."""

    def __init__(self, path, vocab):
        raw, at = pathlib.Path(path).read_bytes(), 4
        self.pieces, self.scores = [], []
        for _ in range(vocab):
            score, length = struct.unpack_from("<fi", raw, at)
            at += 8 + length
            self.scores.append(score)
            self.pieces.append(raw[at - length : at])
        self.ids = {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}

    def encode(self, text):
        ids = [1]
        if text:
            ids.append(self.ids[b" "])
        for character in text:
            piece = character.encode()
            ids += [self.ids[piece]] if piece in self.ids else [b + 3 for b in piece]
        while True:
            merges = [
                (self.scores[self.ids[self.pieces[a] + self.pieces[b]]], -i)
                for i, (a, b) in enumerate(itertools.pairwise(ids))
                if self.pieces[a] + self.pieces[b] in self.ids
            ]
            if not merges:
                return ids
            i = -max(merges)[1]
            ids[i : i + 2] = [self.ids[self.pieces[ids[i]] + self.pieces[ids[i + 1]]]]

    def decode(self, ids):
        out, previous = b"", 1
        for token in ids:
            piece = self.pieces[token]
            if previous == 1 and piece.startswith(b" "):
                piece = piece[1:]
            if len(piece) == 6 and piece.startswith(b"<0x"):
                piece = bytes([int(piece[3:5], 16)])
            out, previous = out + piece, token
        return out.decode(errors="replace")


def greedy(model, prompt, count):
    """The ids after the prompt's, up to `count`; ends before a begin-of-text token, as run.c does."""
    ids, out, margins = list(prompt), [], []
    for position in range(min(model.context, len(prompt) + count - 1)):
        logits = model.forward(ids[position], position)
        if position + 1 < len(ids):
            continue
        token = int(np.argmax(logits))
        if token == 1:
            break
        top = np.partition(logits, -2)[-2:]
        margins.append(float(top[1] - top[0]))
        ids.append(token)
        out.append(token)
    return out, min(margins)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("--prompt", default="")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--ids", action="store_true", help="token ids, not text")
    parser.add_argument("--margin", action="store_true", help="the smallest lead of a chosen logit")
    args = parser.parse_args()
    model = Llama2c(args.checkpoint)
    tokenizer = Tokenizer(args.tokenizer, model.vocab)
    prompt = tokenizer.encode(args.prompt)
    out, margin = greedy(model, prompt, args.tokens)
    if args.margin:
        print(margin)
    elif args.ids:
        print(*prompt)
        print(*out)
    else:
        print(tokenizer.decode(prompt[1:] + out))


if __name__ == "__main__":
    main()

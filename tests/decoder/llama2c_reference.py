"""An independent oracle: llama2.c's forward pass and tokenizer in plain NumPy (float32).

Written from the description of its file format and of the Llama architecture; shares nothing with
src/.
"""

import itertools
import json
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

    def save_pretrained(self, directory):
        """As a Hugging Face directory, where a head's two halves are rotated and not its neighbours."""
        from safetensors.numpy import save_file

        def halves(weight, heads):
            return weight.reshape(heads, -1, 2, self.dim).swapaxes(1, 2).reshape(-1, self.dim)

        tensors = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.final_norm}
        for n in range(self.layers):
            layer = {
                "input_layernorm": self.attention_norm[n],
                "self_attn.q_proj": halves(self.wq[n], self.heads),
                "self_attn.k_proj": halves(self.wk[n], self.kv_heads),
                "self_attn.v_proj": self.wv[n],
                "self_attn.o_proj": self.wo[n],
                "post_attention_layernorm": self.ffn_norm[n],
                "mlp.gate_proj": self.w1[n],
                "mlp.down_proj": self.w2[n],
                "mlp.up_proj": self.w3[n],
            }
            tensors |= {f"model.layers.{n}.{name}.weight": tensor for name, tensor in layer.items()}
        if self.head is not self.embedding:
            tensors["lm_head.weight"] = self.head
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        save_file(tensors, pathlib.Path(directory, "model.safetensors"), {"format": "pt"})
        config = dict(
            model_type="llama", hidden_size=self.dim, intermediate_size=self.hidden,
            num_hidden_layers=self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, vocab_size=self.vocab, rms_norm_eps=1e-5,
            max_position_embeddings=self.context, tie_word_embeddings=self.head is self.embedding,
        )  # fmt: skip
        pathlib.Path(directory, "config.json").write_text(json.dumps(config))


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
    ids, out = list(prompt), []
    for position in range(min(model.context, len(prompt) + count - 1)):
        logits = model.forward(ids[position], position)
        if position + 1 < len(ids):
            continue
        token = int(np.argmax(logits))
        if token == 1:
            break
        ids.append(token)
        out.append(token)
    return out

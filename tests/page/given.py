"""Scores that are given instead of computed: answers to appends, as the server lays them out."""

import random


def answer(encoded, text, *, position=0, place=0, pending=0, seed=0):
    """Answer an append that read `encoded`, the tokens of `text`, with numbers drawn at random."""
    chance = random.Random(f"{seed}-{position}")
    adapted = [-chance.expovariate(0.6) for _ in encoded.ids]
    static = [min(0.0, bits - chance.gauss(0.2, 0.4)) for bits in adapted]
    count = len(encoded.ids)
    return {
        "version": 1,
        "position": position + count,
        "durability": "memory",
        "replayed": False,
        "unit": "bits",
        "ids": list(encoded.ids),
        "logprobs": adapted,
        "static_logprobs": static,
        "ranks": [1 + int(bits * bits) for bits in adapted],
        "entropies": [1.0] * count,
        "starts": [place + start for start in encoded.starts],
        "ends": [place + end for end in encoded.ends],
        "learn": True,
        "updates": count // 20,
        "guards": {},
        "weights": [0.25, 0.75],
        "norm_ratio": 0.1,
        "pending": pending,
        "expires_at": None,
        "totals": {
            "logprob": sum(adapted),
            "static_logprob": sum(static),
            "gain": sum(adapted) - sum(static),
            "tokens": count,
            "bytes": len(text.encode()),
        },
    }


SESSION = {
    "id": "0" * 32,
    "name": None,
    "position": 0,
    "weights": [0.5, 0.5],
    "totals": {"tokens": 0, "bytes": 0, "adapted_bits": 0.0, "static_bits": 0.0, "gain": 0.0},
}
"""As much of a new session as a transcript asks for."""

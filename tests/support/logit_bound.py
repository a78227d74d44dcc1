"""How far logits in float32 may be from those of the same sums in another order."""


def logit_bound(config, logits, length):
    """A sum of n terms errs by at most (n + 2) u of the sum of magnitudes, u = 2^-24; through L blocks of
    three chained sums over D, one over H and one over the context S, and the head's over D, that is at
    most (L (3 D + H + S) + D) u of the logits' magnitude, before cancellation, which random models have
    little of: normalised inputs keep all sums near their root mean square."""
    c = config
    neurons = getattr(c, "intermediate_size", None) or c.ffn_dim
    terms = c.num_hidden_layers * (3 * c.hidden_size + neurons + length) + c.hidden_size
    return float(terms * 2.0**-24 * abs(logits).max())

"""The `peers` bench: GEMINI's checkpoints beside those of other systems, on the same tensors.

One module a peer, each a `Peer` of `contract`; `turn` is what every rank of every peer runs, in
processes (and where needed in an environment) of its own.
"""

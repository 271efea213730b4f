"""Models of others: what their positional encodings really are, found by probing their attention.

Dimensions in tensor names: B batch, T tokens, H heads, Q queries, K keys, E head width, D model width, N angles' lags,
or target tokens or questions of a row, V vocabulary, W windows of a text, S sequences, L layers, F frequencies.
"""

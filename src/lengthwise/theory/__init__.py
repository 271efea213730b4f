"""Theorems on NoPE as explicit weights of the real decoder, and the laws of its initialisation.

`theorem1` counts tokens, `theorem2` turns counts into distances, `horizon` derives the limits by precision and width,
`objection` shows what one layer cannot do; `rows` measures all of it.

Legend of shape suffixes: `lengthwise.encoding` and `lengthwise.model`.
"""

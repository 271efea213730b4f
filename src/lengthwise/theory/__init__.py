"""What should be possible, as code that runs: the theorems on NoPE in the real decoder, and the laws at its start.

`theorem1` counts tokens, `theorem2` turns counts into distances, `horizon` says how far numbers and width let them,
`objection` what one layer cannot do; `rows` measures all of it.

Legend of shape suffixes: `lengthwise.encoding` and `lengthwise.model`.
"""

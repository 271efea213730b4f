"""What should be possible, as code that runs: the theorems on NoPE in the real decoder, and the laws at its start.

Legend of shape suffixes: `lengthwise.encodings` and `lengthwise.model`.
"""

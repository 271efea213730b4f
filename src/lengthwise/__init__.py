"""How far beyond its training length does a decoder-only Transformer still work?"""

__version__ = "0.1.0"

"""A wireless device-edge testbed for LLM inference by speculative decoding."""

__version__ = "0.1.0"

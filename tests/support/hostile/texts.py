"""Texts that hostile peers send: names, ids, digests, paths, code, controls, and long ones."""

from testbed.assets.fingerprints import SYNTHETIC
from testbed.protocols import PROTOCOLS, TARGET_ONLY

TEXTS = (
    *PROTOCOLS, TARGET_ONLY, SYNTHETIC, "", "a", "a-1", "x" * 200, "a/b", "a/b/c/d", "a.gguf", "0" * 32,
    "0123456789abcdef" * 2, "..", "../a", "/etc/passwd", "a//b", "a\n", "a\0b", "-oX", "ü" * 20, "\U0001f600",
    "\x1b[2J", "__reduce__", "%n%s", "1e999", "x" * 3000,
)  # fmt: skip

"""One file per HTTP stack, patched at the attempt; what they share is in `govern` and `patching`."""

"""The HTTP stacks, one module each, patched per attempt; `call`, `governance`, `patches` and `streams` are shared."""

"""One small driver a peer, run by that peer's own interpreter; `work.py` is the dialogue that all of them keep."""

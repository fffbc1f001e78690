"""The peers on the same work, each in its own environment. Imports nothing: every driver passes here."""

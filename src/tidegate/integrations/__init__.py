"""Extensions of other programs, each loaded only by the program that it extends."""

"""One module per failing agent: the rules of its provider, its right fixes and its wrong fixes."""

"""The nouns: frozen values that everything else passes around. They import nothing of ours."""
